//! A step that ran out of device memory is tried again with its micro-batches in halves.
//!
//! Accumulation is a token-weighted mean over the whole step, so the halves give the same gradient (to rounding).

use crate::data::collate::Batch;
use crate::error::{Error, Result};

/// Each micro-batch of more than one row in two; `None` if none has more.
#[must_use]
pub(super) fn halves(batches: &[Batch]) -> Option<Vec<Batch>> {
    if batches.iter().all(|b| b.rows < 2) {
        return None;
    }
    let halves = |b: &Batch| {
        let upper = b.rows / 2;
        [(0, upper), (upper, b.rows)]
            .into_iter()
            .filter(|(from, to)| from < to)
            .map(|(from, to)| {
                let cut = |v: &[i64]| v[from * b.len..to * b.len].to_vec();
                Batch {
                    rows: to - from,
                    len: b.len,
                    ids: cut(&b.ids),
                    labels: cut(&b.labels),
                    lengths: b.lengths[from..to].to_vec(),
                }
            })
            .collect::<Vec<_>>()
    };
    Some(batches.iter().flat_map(halves).collect())
}

/// Runs `step` on `batches`; after each failure for want of memory runs `relieve` and tries with halves.
///
/// Returns what `step` gave and the micro-batches it took.
///
/// # Errors
/// Those of `step`; out of memory once no micro-batch can be halved.
pub(super) fn with_halves<T>(
    mut batches: Vec<Batch>,
    step: &mut dyn FnMut(&[Batch]) -> Result<T>,
    relieve: &mut dyn FnMut(usize) -> Result<()>,
) -> Result<(T, Vec<Batch>)> {
    loop {
        match step(&batches) {
            Ok(done) => return Ok((done, batches)),
            Err(e) if e.is_out_of_memory() => {
                let Some(smaller) = halves(&batches) else { return Err(too_large(&e, &batches)) };
                batches = smaller;
                relieve(batches.iter().map(|b| b.rows).max().unwrap_or(0))?;
            }
            Err(e) => return Err(e),
        }
    }
}

fn too_large(e: &Error, batches: &[Batch]) -> Error {
    let longest = batches.iter().map(|b| b.len).max().unwrap_or(0);
    crate::device::shim::out_of_memory(&format!("one row of {longest} tokens at a time is too much ({})", e.what()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Row;
    use crate::data::collate::micro_batches;
    use crate::device::shim::out_of_memory;

    fn batches(rows: usize, per: usize) -> Vec<Batch> {
        let rows: Vec<Row> = (0..rows as u32)
            .map(|r| Row { ids: (0..5 + r).collect(), trained: (0..5 + r).map(|i| i > 1).collect() })
            .collect();
        micro_batches(&rows.iter().collect::<Vec<_>>(), per)
    }

    #[test]
    fn case_tr_11_out_of_memory_halves_the_micro_batches_until_they_fit() {
        let all = batches(7, 4);
        let (tokens, trained) =
            (all.iter().map(Batch::tokens).sum::<usize>(), all.iter().map(Batch::trained_tokens).sum::<usize>());
        let mut relieved = Vec::new();
        let mut step = |b: &[Batch]| {
            if b.iter().any(|b| b.rows > 1) { Err(out_of_memory("mock")) } else { Ok(b.len()) }
        };
        let (n, last) = with_halves(all, &mut step, &mut |rows| {
            relieved.push(rows);
            Ok(())
        })
        .unwrap();
        assert_eq!((n, relieved), (7, vec![2, 1]));
        assert_eq!(last.iter().map(Batch::tokens).sum::<usize>(), tokens, "no row is lost");
        assert_eq!(last.iter().map(Batch::trained_tokens).sum::<usize>(), trained);
    }

    #[test]
    fn case_tr_11_a_row_that_never_fits_is_an_error_that_says_what_to_change() {
        let e = with_halves(batches(2, 2), &mut |_| Err::<(), _>(out_of_memory("mock")), &mut |_| Ok(())).unwrap_err();
        let text = format!("{e} {}", e.advice().unwrap_or_default());
        assert!(e.is_out_of_memory() && text.contains("one row of") && text.contains("max_length"), "{text}");
        let other =
            with_halves(batches(2, 2), &mut |_| Err::<(), _>(Error::run("broken")), &mut |_| Ok(())).unwrap_err();
        assert!(!other.is_out_of_memory());
    }
}
