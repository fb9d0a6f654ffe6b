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
    ("str_format", "refused with its line: `%` on strings; the `format` filter works"),
    ("method_wins_over_key", "refused with its line: no bound methods to test"),
    ("namespace_dict", "refused with its line: namespace() takes a dict or names, not both"),
    ("macro_varargs", "refused with its line"),
    ("loop_dictsort", "refused with its line: dictsort takes by= by name"),
    ("loop_over_none", "Python fails, here the loop is empty"),
    ("filter_text", "refused with its line: wordcount, truncate, urlencode"),
    ("json_schema_walk", "p['items'] of a dict without that key is Python's method, here it is undefined"),
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
            wrong.push(format!("{name}: {source}\n   want {:?}{:?}\n   got  {got:?}", f["output"], f["error"]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn case_da_21_real_templates_print_the_same_bytes_as_transformers() {
    let reference = reference();
    for c in reference["conversations"].as_array().unwrap() {
        let source = reference["templates"][c["template_ref"].as_str().unwrap()].as_str().unwrap();
        let got = compile(source).unwrap().render_with(&c["context"], false).unwrap();
        assert_eq!(got, c["output"].as_str().unwrap(), "{}", c["name"]);
    }
}

#[test]
fn generation_ranges_are_those_of_transformers() {
    let mut seen = 0;
    for f in reference()["features"].as_array().unwrap() {
        let Some(want) = f.get("generation") else { continue };
        let template = compile(f["template"].as_str().unwrap()).unwrap();
        assert!(template.has_generation());
        // Two code points mark the places; the reference counts characters of the text without them.
        let marked = template.render_with(&f["context"], true).unwrap();
        let (mut ranges, mut at, mut from) = (Vec::new(), 0, 0);
        for c in marked.chars() {
            match c {
                '\u{FDD0}' => from = at,
                '\u{FDD1}' => ranges.push(serde_json::json!([from, at])),
                _ => at += 1,
            }
        }
        assert_eq!(&Json::Array(ranges), want, "{}", f["name"]);
        seen += 1;
    }
    assert!(seen >= 4, "the reference has {seen} templates with generation marks");
}

#[test]
fn marked_text_is_the_text() {
    let t = compile("{% for m in messages %}[{% generation %}{{ m.content }}{% endgeneration %}]{% endfor %}").unwrap();
    let messages = [
        serde_json::json!({"role": "assistant", "content": "é"}),
        serde_json::json!({"role": "assistant", "content": ""}),
    ];
    let context = Context { messages: &messages, tools: None, add_generation_prompt: false, kwargs: None };
    let marked = t.render_marked(context).unwrap();
    assert_eq!(marked, Marked { text: "[é][]".into(), generated: std::iter::once(1..3).collect() });
    // Text that holds the first marks already is marked with others.
    let messages = [serde_json::json!({"role": "assistant", "content": "\u{FDD0}\u{FDD1}"})];
    let marked = t.render_marked(Context { messages: &messages, ..context }).unwrap();
    assert_eq!(marked.generated.first(), Some(&(1..7)));
}

#[test]
fn what_a_template_raises_is_told_apart_from_what_fails() {
    let context = Context { messages: &[], tools: None, add_generation_prompt: false, kwargs: None };
    let raised = compile("{{ raise_exception('roles must\x1b[2J alternate') }}").unwrap().render(context);
    assert_eq!(raised, Err(Refusal::Raised("roles must\\u{1b}[2J alternate".into())));
    let failed = compile("a\n{{ messages[0].content + 'x' }}").unwrap().render(context).unwrap_err();
    assert!(failed.to_string().contains("line 2"), "{failed}");
}

#[test]
fn variables_are_those_of_transformers() {
    let source =
        "{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ pad_token is defined }}{{ enable_thinking }}";
    let specials = vec![("bos_token".to_string(), "<s>".to_string())];
    let t = ChatTemplate::compile(source, "test", specials, Date::from_unix(0)).unwrap();
    let kwargs = serde_json::json!({"enable_thinking": false});
    let context = Context { messages: &[], tools: None, add_generation_prompt: false, kwargs: kwargs.as_object() };
    assert_eq!(t.render(context).unwrap(), "<s>TrueTrueFalseFalse");
}
