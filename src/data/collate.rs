//! Rows to rectangular micro-batches: right padding, labels shifted by one place, −100 where no loss is wanted.
//!
//! What carries loss is decided by place alone (DA-11): a row's own mask and its length. No id is ever compared, so a
//! pad token that equals the end token costs no end token its label.

use super::Row;

/// The label of a place that carries no loss, as PyTorch's `ignore_index`.
pub const IGNORE: i64 = -100;

/// One micro-batch, row-major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Token ids, `[rows × len]`, padded on the right with 0 (any id will do: causal attention never looks right, and
    /// padded places carry no loss).
    pub ids: Vec<i64>,
    /// What the model should predict *at* each place, `[rows × len]`: the next id where that is trained, else [`IGNORE`].
    pub labels: Vec<i64>,
    /// Rows.
    pub rows: usize,
    /// Places per row: the longest row's tokens, or more.
    pub len: usize,
    /// Tokens of each row before padding.
    pub lengths: Vec<usize>,
}

impl Batch {
    /// A batch of `rows`, padded to the longest.
    #[must_use]
    pub fn new(rows: &[&Row]) -> Batch {
        let len = rows.iter().map(|r| r.ids.len()).max().unwrap_or(0);
        let mut ids = vec![0; rows.len() * len];
        let mut labels = vec![IGNORE; rows.len() * len];
        for (r, row) in rows.iter().enumerate() {
            for (i, &id) in row.ids.iter().enumerate() {
                ids[r * len + i] = i64::from(id);
                if i > 0 && row.trained[i] {
                    labels[r * len + i - 1] = i64::from(id);
                }
            }
        }
        Batch { ids, labels, rows: rows.len(), len, lengths: rows.iter().map(|r| r.ids.len()).collect() }
    }

    /// The same with rows of `len` places, if they are shorter.
    #[must_use]
    pub fn padded(self, len: usize) -> Batch {
        if len <= self.len {
            return self;
        }
        let wider = |values: &[i64], fill: i64| {
            let mut out = vec![fill; self.rows * len];
            for (to, from) in out.chunks_mut(len).zip(values.chunks(self.len.max(1))) {
                to[..from.len()].copy_from_slice(from);
            }
            out
        };
        Batch { ids: wider(&self.ids, 0), labels: wider(&self.labels, IGNORE), len, ..self }
    }

    /// Tokens that carry loss.
    #[must_use]
    pub fn trained_tokens(&self) -> usize {
        self.labels.iter().filter(|l| **l != IGNORE).count()
    }

    /// Tokens that aren't padding.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.lengths.iter().sum()
    }
}

/// `rows` in order, `batch` at a time; the last micro-batch may hold fewer.
#[must_use]
pub fn micro_batches(rows: &[&Row], batch: usize) -> Vec<Batch> {
    rows.chunks(batch.max(1)).map(Batch::new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ids: &[u32], trained: &[u8]) -> Row {
        Row { ids: ids.to_vec(), trained: trained.iter().map(|t| *t == 1).collect() }
    }

    #[test]
    fn labels_are_the_next_id_and_padding_is_ignored() {
        let (a, b) = (row(&[5, 6, 7], &[0, 1, 1]), row(&[9, 8], &[0, 1]));
        let batch = Batch::new(&[&a, &b]);
        assert_eq!((batch.rows, batch.len), (2, 3));
        assert_eq!(batch.ids, [5, 6, 7, 9, 8, 0]);
        assert_eq!(batch.labels, [6, 7, IGNORE, 8, IGNORE, IGNORE]);
        assert_eq!((batch.trained_tokens(), batch.tokens()), (3, 5));
    }

    #[test]
    fn case_da_11_labels_go_by_place_never_by_id() {
        // Pad, end token and an ordinary trained token share id 0 here; each trained one keeps its label.
        let (short, long) = (row(&[3, 0], &[0, 1]), row(&[4, 0, 7, 0], &[0, 1, 0, 1]));
        let batch = Batch::new(&[&short, &long]);
        assert_eq!(batch.labels, [0, IGNORE, IGNORE, IGNORE, 0, IGNORE, 0, IGNORE]);
        assert_eq!(batch.trained_tokens(), 3);
    }

    #[test]
    fn rows_made_longer_keep_their_tokens() {
        let rows = [row(&[5, 6, 7], &[0, 1, 1]), row(&[9, 8], &[0, 1])];
        let batch = Batch::new(&[&rows[0], &rows[1]]);
        let wide = batch.clone().padded(5);
        assert_eq!(wide.ids, [5, 6, 7, 0, 0, 9, 8, 0, 0, 0]);
        assert_eq!(wide.labels, [6, 7, IGNORE, IGNORE, IGNORE, 8, IGNORE, IGNORE, IGNORE, IGNORE]);
        assert_eq!((wide.tokens(), wide.trained_tokens(), wide.len), (5, 3, 5));
        assert_eq!(batch.clone().padded(2), batch);
    }

    #[test]
    fn the_first_token_is_never_a_target() {
        assert_eq!(Batch::new(&[&row(&[1, 2], &[1, 0])]).trained_tokens(), 0);
    }

    #[test]
    fn micro_batches_keep_order_and_pad_apart() {
        let rows = [row(&[1], &[0]), row(&[2, 3], &[0, 1]), row(&[4, 5, 6], &[0, 1, 1])];
        let refs: Vec<&Row> = rows.iter().collect();
        let batches = micro_batches(&refs, 2);
        assert_eq!(batches.iter().map(|b| (b.rows, b.len)).collect::<Vec<_>>(), [(2, 2), (1, 3)]);
        assert!(micro_batches(&[], 2).is_empty());
    }
}
