//! The results file: rows of this call beside rows of earlier ones, written whole after every row.

use super::BENCH_SCHEMA;
use crate::error::{Error, Result};
use crate::files;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Peers that every row has a figure for, or `null`.
pub const PEERS: [&str; 8] =
    ["block_streamer", "soup", "hf_resident", "hf_best", "fsdp2", "accelerate", "deepspeed", "airllm"];

/// Keys that every row has, `null` where there is no figure.
pub const ROW_KEYS: [&str; 14] = [
    "row",
    "ok",
    "ours_s",
    "ours_p95",
    "ours_n",
    "resident_s",
    "bound_s",
    "bound_resource",
    "floor_s",
    "better_peer",
    "better_peer_s",
    "peers",
    "vram_live",
    "written",
];

/// A row without figures.
#[must_use]
pub fn empty_row(name: &str) -> Value {
    let mut row: Map<String, Value> = ROW_KEYS.iter().map(|k| (k.to_string(), Value::Null)).collect();
    row.insert("row".into(), name.into());
    row.insert("peers".into(), PEERS.iter().map(|p| (p.to_string(), Value::Null)).collect::<Map<_, _>>().into());
    row.into()
}

/// Results in the making.
#[derive(Debug)]
pub struct Results {
    value: Value,
    /// Where they go; `None` = nowhere until the end.
    file: Option<PathBuf>,
}

impl Results {
    /// Begins with the rows of `merge`, if given (a file that isn't there yet has none), under this call's head.
    ///
    /// # Errors
    /// `merge` is no results file of this schema.
    pub fn begin(
        machine: Value,
        date: &str,
        command: &str,
        merge: Option<&Path>,
        out: Option<&Path>,
    ) -> Result<Results> {
        let mut rows = Vec::new();
        if let Some(path) = merge
            && path.exists()
        {
            let text = std::fs::read_to_string(path).map_err(|e| Error::input("read", path, e))?;
            let odd = |why: String| {
                Error::usage(format!("'{}' holds no results of `bench step --peers`: {why}", path.display()))
                    .next("name another file")
            };
            let old: Value = serde_json::from_str(&text).map_err(|e| odd(e.to_string()))?;
            if old["schema"] != BENCH_SCHEMA || old["what"] != "peers" {
                return Err(odd(format!("schema {}, what {}", old["schema"], old["what"])));
            }
            rows = old["rows"].as_array().cloned().unwrap_or_default();
        }
        let value = json!({
            "schema": BENCH_SCHEMA,
            "what": "peers",
            "machine": machine,
            "date": date,
            "command": command,
            "rows": rows,
        });
        Ok(Results { value, file: out.or(merge).map(Path::to_path_buf) })
    }

    /// Puts `row` in the place of the row of that name, or at the end, and writes the file.
    ///
    /// A row that the call's time cut short (`complete` is false) doesn't replace one that is whole; `false` then.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn put(&mut self, row: Value) -> Result<bool> {
        if let Some(rows) = self.value["rows"].as_array_mut() {
            match rows.iter_mut().find(|r| r["row"] == row["row"]) {
                Some(old) if row["complete"] == false && old["complete"] != false => return Ok(false),
                Some(old) => *old = row,
                None => rows.push(row),
            }
        }
        if let Some(file) = &self.file {
            files::replace(file, format!("{:#}\n", self.value).as_bytes())?;
        }
        Ok(true)
    }

    /// Sets a key of the head.
    pub fn set(&mut self, key: &str, value: Value) {
        self.value[key] = value;
    }

    /// All of it.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, seconds: f64) -> Value {
        let mut r = empty_row(name);
        r["ours_s"] = json!(seconds);
        r
    }

    #[test]
    fn a_row_has_every_key_and_null_for_what_is_not_measured() {
        let r = empty_row("ram-32");
        for key in ROW_KEYS {
            assert!(r.get(key).is_some(), "{key}");
        }
        for peer in PEERS {
            assert!(r["peers"].get(peer).is_some_and(Value::is_null), "{peer}");
        }
        assert!(r["ok"].is_null() && r["bound_s"].is_null());
    }

    #[test]
    fn merging_replaces_rows_of_this_call_and_keeps_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("results.json");
        let mut first = Results::begin(json!({ "gpu": "A" }), "day 1", "c", Some(&file), None).unwrap();
        first.put(row("a", 1.0)).unwrap();
        first.put(row("b", 2.0)).unwrap();
        let mut second = Results::begin(json!({ "gpu": "B" }), "day 2", "c", Some(&file), None).unwrap();
        second.put(row("b", 3.0)).unwrap();
        assert!(second.put(row("c", 4.0)).unwrap());
        let mut cut = row("a", 8.0);
        cut["complete"] = json!(false);
        assert!(!second.put(cut).unwrap(), "a whole row is not replaced by a part of one");
        let all: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let rows: Vec<_> =
            all["rows"].as_array().unwrap().iter().map(|r| (r["row"].clone(), r["ours_s"].clone())).collect();
        assert_eq!(rows, [(json!("a"), json!(1.0)), (json!("b"), json!(3.0)), (json!("c"), json!(4.0))]);
        assert_eq!((all["machine"]["gpu"].clone(), all["date"].clone()), (json!("B"), json!("day 2")));
        std::fs::write(&file, "{\"schema\": 99}").unwrap();
        assert!(Results::begin(Value::Null, "", "", Some(&file), None).unwrap_err().to_string().contains("schema 99"));
    }
}
