//! The little YAML that recipes need. Text is written as JSON strings, which YAML 1.2 reads as they are.

use serde_json::Value;

/// A document written line by line.
#[derive(Default)]
pub(super) struct Yaml(String);

impl Yaml {
    /// A comment line; longer text is the caller's to break.
    pub(super) fn note(&mut self, text: &str) {
        for line in text.lines() {
            self.0.push_str(&format!("# {line}\n"));
        }
    }

    /// `key: value` at the top; `null` writes nothing.
    pub(super) fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.entry(0, key, &value.into());
    }

    /// A nested value under `key`: maps and lists in block style.
    fn entry(&mut self, indent: usize, key: &str, value: &Value) {
        let pad = " ".repeat(indent);
        match value {
            Value::Null => {}
            Value::Array(list) if list.is_empty() => self.0.push_str(&format!("{pad}{key}: []\n")),
            Value::Array(list) => {
                self.0.push_str(&format!("{pad}{key}:\n"));
                for item in list {
                    self.item(indent + 2, item);
                }
            }
            Value::Object(map) => {
                self.0.push_str(&format!("{pad}{key}:\n"));
                for (k, v) in map {
                    self.entry(indent + 2, k, v);
                }
            }
            scalar => self.0.push_str(&format!("{pad}{key}: {}\n", plain(scalar))),
        }
    }

    /// A list item: a scalar, or a map whose first key stands on the dash's line.
    fn item(&mut self, indent: usize, item: &Value) {
        let Value::Object(map) = item else {
            self.0.push_str(&format!("{}- {}\n", " ".repeat(indent), plain(item)));
            return;
        };
        let at = self.0.len();
        for (k, v) in map {
            self.entry(indent + 2, k, v);
        }
        let dash = at + indent;
        if self.0.len() > dash {
            self.0.replace_range(dash..=dash, "-");
        }
    }

    pub(super) fn text(self) -> String {
        self.0
    }
}

/// A scalar that YAML 1.1 readers (PyYAML) also take for what it is: they read `2e-5` as text, `2.0e-5` as a number.
fn plain(value: &Value) -> String {
    let text = value.to_string();
    match text.split_once('e') {
        Some((digits, power)) if value.is_number() => {
            let dot = if digits.contains('.') { "" } else { ".0" };
            let sign = if power.starts_with(['-', '+']) { "" } else { "+" };
            format!("{digits}{dot}e{sign}{power}")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_are_numbers_in_yaml_1_1_too() {
        for x in [2e-5, 1e-7, 1.5e-7, 1e20, 1e300, 0.25] {
            let text = plain(&json!(x));
            let (digits, power) = text.split_once('e').unwrap_or((&text, "+0"));
            assert!(digits.contains('.') && power.starts_with(['-', '+']), "{text}");
            assert_eq!(text.parse::<f64>().unwrap(), x);
        }
        assert_eq!(plain(&json!("1e5")), "\"1e5\"");
    }

    #[test]
    fn maps_lists_and_text_are_block_yaml() {
        let mut y = Yaml::default();
        y.note("two\nlines");
        y.set("a", "x: \"y\" # é");
        y.set("none", Value::Null);
        y.set("list", json!(["q", 2, true]));
        y.set("maps", json!([{ "path": "p", "none": null, "type": { "k": "v" } }, { "b": 1.5 }]));
        let want = "# two\n# lines\na: \"x: \\\"y\\\" # é\"\nlist:\n  - \"q\"\n  - 2\n  - true\nmaps:\n  - path: \"p\"\n    \
                    type:\n      k: \"v\"\n  - b: 1.5\n";
        assert_eq!(y.text(), want);
    }
}
