//! Rows that are token ids already: `{"input_ids": […], "labels": […]}`, as other trainers cache them.
//!
//! Asked for by `data.format = "tokens"`, never detected; needs no tokenizer. Without `labels` every token after the
//! first trains; with them, those that aren't −100 (place i of both lists is the same token, as in transformers).

use super::pipeline::{OverLong, Settings};
use super::reader;
use super::{ModelFiles, Row};
use crate::config::DataSection;
use crate::error::{Error, Result};
use crate::event::DataFacts;
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

/// Reads the files of `data` and fills what `facts` says of them.
///
/// # Errors
/// A row of another shape, an id outside the embedding, a row over length under `over_long = "error"`.
pub(super) fn read(
    data: &DataSection,
    settings: &Settings,
    model: ModelFiles<'_>,
    stop: &dyn Fn() -> Result<()>,
    facts: &mut DataFacts,
) -> Result<(Vec<Row>, Vec<Row>)> {
    let mut hash = Sha256::new();
    let mut files = |paths: &[PathBuf]| -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for path in paths {
            let summary = reader::read(path, data.skip_bad_lines, &mut |record| {
                stop()?;
                let at = || format!("'{}' line {}", path.display(), record.line);
                let row = row(&record.value, model.vocab).map_err(|why| {
                    Error::data(format!("{}: {why}", at()))
                        .next("rows of format tokens are {\"input_ids\": [1, 2, …]}, with \"labels\" of the same length if not all train")
                })?;
                match fit(row, settings, facts) {
                    Some(row) if row.trained_tokens() > 0 => rows.push(row),
                    Some(_) => *facts.dropped.entry("no trained token".into()).or_default() += 1,
                    None if settings.over_long == OverLong::Error => {
                        return Err(Error::data(format!(
                            "{}: more than data.max_length = {} tokens",
                            at(),
                            settings.max_length
                        ))
                        .next("raise data.max_length, or set data.over_long"));
                    }
                    None => *facts.dropped.entry("over max_length".into()).or_default() += 1,
                }
                Ok(())
            })?;
            hash.update(summary.sha256);
        }
        Ok(rows)
    };
    let (train, eval) = (files(&data.files)?, files(&data.eval_files)?);
    facts.format = "tokens".into();
    facts.sha256 = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    if train.is_empty() {
        return Err(Error::data("no row of the data files can be used")
            .next("see the counts of dropped rows: all were over length or had nothing to train"));
    }
    Ok((train, eval))
}

fn row(value: &Json, vocab: usize) -> Result<Row, String> {
    let list = |key: &str| value.get(key).map(|v| v.as_array().ok_or(format!("`{key}` is not a list")));
    let ids = list("input_ids").ok_or("`input_ids` is missing")??;
    let ids = ids
        .iter()
        .map(|v| match v.as_u64() {
            Some(id) if (id as usize) < vocab => Ok(id as u32),
            _ => Err(format!("`input_ids` holds {v}, which is no row of the embedding (0 to {})", vocab - 1)),
        })
        .collect::<Result<Vec<u32>, _>>()?;
    let trained = match list("labels") {
        None => (0..ids.len()).map(|i| i > 0).collect(),
        Some(labels) => {
            let labels = labels?;
            if labels.len() != ids.len() {
                return Err(format!("{} labels for {} ids", labels.len(), ids.len()));
            }
            labels.iter().enumerate().map(|(i, l)| i > 0 && l.as_i64() != Some(-100)).collect()
        }
    };
    Ok(Row { ids, trained })
}

/// Cuts a row to length, counting; `None` when it may not be cut.
fn fit(mut row: Row, settings: &Settings, facts: &mut DataFacts) -> Option<Row> {
    let over = row.ids.len().saturating_sub(settings.max_length);
    if over > 0 {
        match settings.over_long {
            OverLong::TruncateEnd => {
                row.ids.truncate(settings.max_length);
                row.trained.truncate(settings.max_length);
            }
            OverLong::TruncateStart => {
                row.ids.drain(..over);
                row.trained.drain(..over);
            }
            OverLong::Drop | OverLong::Error => return None,
        }
        facts.truncated += 1;
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_mask_and_ids_are_checked() {
        let all = row(&json!({"input_ids": [5, 6, 7]}), 10).unwrap();
        assert_eq!((all.ids, all.trained), (vec![5, 6, 7], vec![false, true, true]));
        let some = row(&json!({"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}), 10).unwrap();
        assert_eq!(some.trained, [false, false, true]);
        assert!(row(&json!({"input_ids": [10]}), 10).unwrap_err().contains("holds 10"));
        assert!(row(&json!({"input_ids": [-1]}), 10).unwrap_err().contains("holds -1"));
        assert!(row(&json!({"input_ids": [1], "labels": []}), 10).unwrap_err().contains("0 labels"));
        assert!(row(&json!({"text": "x"}), 10).unwrap_err().contains("missing"));
    }
}
