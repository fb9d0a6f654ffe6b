//! Rows that are token ids already: `{"input_ids": […], "labels": […]}`, as other trainers cache them.
//!
//! Asked for by `data.format = "tokens"`, never detected; needs no tokenizer. Without `labels` every token after the
//! first trains; with them, those that aren't −100 (place i of both lists is the same token, as in transformers). A label is
//! −100 or the id at its place: another id, or anything that is no number, is refused.

use super::pipeline::Settings;
use super::reader;
use super::template::clean;
use super::{ModelFiles, Row};
use crate::config::{DataSection, OverLong};
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
    let list = |key: &str| {
        value.get(key).filter(|v| !v.is_null()).map(|v| v.as_array().ok_or(format!("`{key}` is not a list")))
    };
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
            let mut trained = Vec::with_capacity(ids.len());
            for (i, (label, &id)) in labels.iter().zip(&ids).enumerate() {
                match label.as_i64() {
                    Some(-100) => trained.push(false),
                    Some(l) if l == i64::from(id) => trained.push(i > 0),
                    _ => {
                        let label = clean(&label.to_string());
                        return Err(format!(
                            "`labels` holds {label} at place {i}, which is neither -100 nor the id {id}"
                        ));
                    }
                }
            }
            trained
        }
    };
    if let Some(mask) = list("attention_mask") {
        let mask = mask?;
        if mask.len() != ids.len() || mask.iter().any(|m| m.as_i64() != Some(1)) {
            return Err("`attention_mask` leaves tokens out; take them out of `input_ids`".into());
        }
    }
    const KNOWN: [&str; 5] = ["input_ids", "labels", "attention_mask", "length", "token_type_ids"];
    match value.as_object().into_iter().flatten().find(|(k, v)| !v.is_null() && !KNOWN.contains(&k.as_str())) {
        Some((key, _)) => Err(format!("the field `{}` is not known in rows of format tokens", clean(key))),
        None => Ok(Row { ids, trained }),
    }
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

    #[test]
    fn case_fo_12_labels_are_the_id_or_ignored() {
        let with = |labels: Json| row(&json!({"input_ids": [1, 2, 3], "labels": labels}), 10);
        assert_eq!(with(json!([-100, 2, 3])).unwrap().trained, [false, true, true]);
        for bad in [
            json!([-100, 9, 3]),
            json!([-100, null, 3]),
            json!([-100, "x", 3]),
            json!([-100, -1, 3]),
            json!([-100, 2.5, 3]),
        ] {
            let why = with(bad.clone()).unwrap_err();
            assert!(why.contains("at place 1, which is neither -100 nor the id 2"), "{bad}: {why}");
        }
        assert_eq!(with(Json::Null).unwrap().trained, [false, true, true], "null is absent");
    }

    #[test]
    fn case_fo_12c_other_fields_of_token_rows_are_used_or_refused() {
        let with = |key: &str, value: Json| row(&json!({"input_ids": [1, 2], key: value}), 10);
        assert!(with("attention_mask", json!([1, 1])).is_ok());
        assert!(with("attention_mask", json!([1, 0])).unwrap_err().contains("attention_mask"));
        assert!(with("length", json!(2)).is_ok());
        for key in ["loss_mask", "weights", "position_ids"] {
            assert!(with(key, json!([1, 0])).unwrap_err().contains(key));
        }
    }
}
