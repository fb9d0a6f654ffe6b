//! Templates against what transformers prints for them (`tests/reference/templates.json`), and their limits.

use super::*;

fn compile(source: &str) -> Result<ChatTemplate> {
    // The reference was rendered at 2024-07-06 09:05:03.
    ChatTemplate::compile(source, "test", Vec::new(), Date::from_unix(1_720_256_703))
}

fn reference() -> Json {
    serde_json::from_str(include_str!("../../../tests/reference/templates.json")).unwrap()
}

/// Features whose bytes differ from Jinja2's, and why that is right or harmless here.
const DIFFERENT: &[(&str, &str)] = &[
    ("fromjson", "transformers has no such filter; here it reads JSON"),
    (
        "str_format",
        "refused with its line: `%` on strings; the `format` filter works",
    ),
    (
        "method_wins_over_key",
        "refused with its line: no bound methods to test",
    ),
    (
        "namespace_dict",
        "refused with its line: namespace() takes a dict or names, not both",
    ),
    ("macro_varargs", "refused with its line"),
    (
        "loop_dictsort",
        "refused with its line: dictsort takes by= by name",
    ),
    ("loop_over_none", "Python fails, here the loop is empty"),
    (
        "filter_text",
        "refused with its line: wordcount, truncate, urlencode",
    ),
    (
        "json_schema_walk",
        "p['items'] of a dict without that key is Python's method, here it is undefined",
    ),
];

#[test]
fn case_da_21_features_print_the_same_bytes_as_transformers() {
    let reference = reference();
    let mut wrong = Vec::new();
    for f in reference["features"].as_array().unwrap() {
        let (name, source) = (f["name"].as_str().unwrap(), f["template"].as_str().unwrap());
        let got = compile(source)
            .map_err(|e| e.to_string())
            .and_then(|t| t.render_with(&f["context"], false).map_err(|e| e.to_string()));
        let same = match (f.get("output"), &got) {
            (Some(want), Ok(got)) => want.as_str() == Some(got),
            (None, Err(_)) => true,
            _ => false,
        };
        let known = DIFFERENT.iter().any(|d| d.0 == name);
        if same == known {
            wrong.push(format!(
                "{name}: {source}\n   want {:?}{:?}\n   got  {got:?}",
                f["output"], f["error"]
            ));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn case_da_21_real_templates_print_the_same_bytes_as_transformers() {
    let reference = reference();
    for c in reference["conversations"].as_array().unwrap() {
        let source = reference["templates"][c["template_ref"].as_str().unwrap()]
            .as_str()
            .unwrap();
        let got = compile(source)
            .unwrap()
            .render_with(&c["context"], false)
            .unwrap();
        assert_eq!(got, c["output"].as_str().unwrap(), "{}", c["name"]);
    }
}
