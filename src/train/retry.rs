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

/// `batches` with those in halves that have at least `tokens` tokens, the size that failed before.
#[must_use]
pub(super) fn below(tokens: usize, batches: Vec<Batch>) -> Vec<Batch> {
    let smaller = |b: Batch| match halves(std::slice::from_ref(&b)) {
        Some(two) if b.rows * b.len >= tokens => below(tokens, two),
        _ => vec![b],
    };
    batches.into_iter().flat_map(smaller).collect()
}

/// Runs `step` on `batches`; after each failure for want of memory runs `relieve` and tries with halves. `relieve` gets
/// the rows of the largest micro-batch to come, and the tokens of the largest one that failed and could be halved.
///
/// # Errors
/// Those of `step`; out of memory once no micro-batch can be halved.
pub(super) fn with_halves<T>(
    mut batches: Vec<Batch>,
    step: &mut dyn FnMut(&[Batch]) -> Result<T>,
    relieve: &mut dyn FnMut(usize, usize) -> Result<()>,
) -> Result<T> {
    loop {
        match step(&batches) {
            Ok(done) => return Ok(done),
            Err(e) if e.is_out_of_memory() => {
                let Some(smaller) = halves(&batches) else { return Err(too_large(&e, &batches)) };
                let failed = batches.iter().filter(|b| b.rows > 1).map(|b| b.rows * b.len).max().unwrap_or(0);
                batches = smaller;
                relieve(batches.iter().map(|b| b.rows).max().unwrap_or(0), failed)?;
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
            if b.iter().any(|b| b.rows > 1) { Err(out_of_memory("mock")) } else { Ok(b.to_vec()) }
        };
        let last = with_halves(all, &mut step, &mut |rows, _| {
            relieved.push(rows);
            Ok(())
        })
        .unwrap();
        assert_eq!((last.len(), relieved), (7, vec![2, 1]));
        assert_eq!(last.iter().map(Batch::tokens).sum::<usize>(), tokens, "no row is lost");
        assert_eq!(last.iter().map(Batch::trained_tokens).sum::<usize>(), trained);
    }

    #[test]
    fn case_fo_18a_the_size_that_failed_is_not_tried_again() {
        // No more than 20 tokens at a time fit.
        let fits = |b: &[Batch]| b.iter().all(|b| b.rows * b.len <= 20);
        let (mut limit, mut tries) = (usize::MAX, Vec::new());
        for _ in 0..3 {
            let mut tried = 0;
            let all = below(limit, batches(7, 4));
            let mut step = |b: &[Batch]| {
                tried += 1;
                if fits(b) { Ok(b.iter().map(Batch::tokens).sum::<usize>()) } else { Err(out_of_memory("mock")) }
            };
            let tokens = with_halves(all, &mut step, &mut |_, failed| {
                limit = limit.min(failed);
                Ok(())
            });
            assert_eq!(tokens.unwrap(), batches(7, 4).iter().map(Batch::tokens).sum::<usize>());
            tries.push(tried);
        }
        assert!(tries[0] > 1 && tries[1..] == [1, 1], "{tries:?}");
        // What was never too large stays as it is.
        assert_eq!(below(limit, batches(2, 2)).len(), 1);
    }

    #[test]
    fn case_tr_11_a_row_that_never_fits_is_an_error_that_says_what_to_change() {
        let e =
            with_halves(batches(2, 2), &mut |_| Err::<(), _>(out_of_memory("mock")), &mut |_, _| Ok(())).unwrap_err();
        let text = format!("{e} {}", e.advice().unwrap_or_default());
        assert!(e.is_out_of_memory() && text.contains("one row of") && text.contains("max_length"), "{text}");
        let other =
            with_halves(batches(2, 2), &mut |_| Err::<(), _>(Error::run("broken")), &mut |_, _| Ok(())).unwrap_err();
        assert!(!other.is_out_of_memory());
    }
}
