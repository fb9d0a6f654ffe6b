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

fn nothing() -> Context<'static> {
    Context { messages: &[], tools: None, add_generation_prompt: false, kwargs: None }
}

#[test]
fn case_fo_80_deep_templates_are_refused_or_rendered_and_end_nothing() {
    let chain = |piece: &str, n: usize| piece.repeat(n);
    for (name, source) in [
        ("minus", format!("{{{{ {}1 }}}}", chain("-", 6_000))),
        ("minus, more", format!("{{{{ {}1 }}}}", chain("-", 200_000))),
        ("not", format!("{{{{ {}true }}}}", chain("not ", 7_000))),
        ("plus", format!("{{{{ 1{} }}}}", chain("+1", 100_000))),
        ("tilde", format!("{{{{ 1{} }}}}", chain("~1", 3_500))),
        ("filters", format!("{{{{ 'a'{} }}}}", chain("|upper", 3_500))),
        ("attributes", format!("{{{{ a{} }}}}", chain(".b", 3_500))),
        ("brackets", format!("{{{{ {}{} }}}}", chain("[", 7_000), chain("]", 7_000))),
        ("elif", format!("{{% if a %}}1{}{{% endif %}}", chain("{% elif a %}2", 30_000))),
        ("if", chain("{% if a %}", 30_000)),
        ("inline if", format!("{{{{ 1{} }}}}", chain(" if a else 2", 2_000))),
        ("long", "x".repeat(MAX_TEMPLATE as usize + 1)),
    ] {
        match compile(&source) {
            Ok(template) => drop(template.render(nothing())),
            Err(e) => assert!(e.to_string().contains("chat template (test)"), "{name}: {e}"),
        }
    }
    assert!(
        compile(&format!("{{{{ {}1 }}}}", "-".repeat(200_000))).unwrap_err().to_string().contains("words and signs")
    );
}

#[test]
fn case_fo_80b_values_nested_without_end_are_given_up_safely() {
    let deep = "{% set ns = namespace(s=[]) %}{% for i in range(66000) %}{% set ns.s = [ns.s] %}{% endfor %}";
    let map = "{% set ns = namespace(s={}) %}{% for i in range(66000) %}{% set ns.s = {'a': ns.s} %}{% endfor %}";
    for (source, want) in [
        (format!("{deep}ok"), Ok("ok")),
        (
            "{% set ns = namespace(s=[]) %}{% for i in range(99999) %}{% set ns.s = [[[[[[[[[[ns.s]]]]]]]]]] %}{% endfor %}"
                .into(),
            Err("out of fuel"),
        ),
        (format!("{map}{{{{ ns.s }}}}"), Err("nested too deeply to print")),
        (format!("{deep}{{{{ ns.s | tojson }}}}"), Err("nested too deeply for JSON")),
        (
            "{% set ns = namespace(s=[], t=[]) %}{% for i in range(40000) %}{% set ns.s = [ns.s] %}{% set ns.t = [ns.t] %}{% endfor %}{{ ns.s == ns.t }}"
                .into(),
            Ok("True"),
        ),
        ("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}".into(), Err("recursion limit")),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}".into(), Err("out of fuel")),
    ] {
        match (compile(&source).unwrap().render(nothing()), want) {
            (Ok(text), Ok(want)) => assert_eq!(text, want, "{source}"),
            (Err(why), Err(want)) => assert!(why.to_string().contains(want), "{source}: {why}"),
            (got, _) => panic!("{source}: {got:?} instead of {want:?}"),
        }
    }
    // What came before leaves the room usable.
    let t = compile("{% if x is defined %}{{ x.y.z.w }}{% endif %}ok").unwrap();
    assert_eq!(t.render(nothing()).unwrap(), "ok");
    assert_eq!(t.render(nothing()).unwrap(), "ok");
}

#[test]
fn case_fo_81_what_a_template_builds_is_bounded() {
    let failed = |source: &str| compile(source).unwrap().render(nothing()).unwrap_err().to_string();
    assert!(failed("{{ '{:>4000000000}'.format(1) }}").contains("a width or precision is larger than 4096"));
    assert!(failed("{{ '{:>{}}'.format(1, 4000000000) }}").contains("a width or precision is larger than 4096"));
    assert!(failed("{{ '{:.{p}f}'.format(1.0, p=99999) }}").contains("a width or precision is larger than 4096"));
    assert!(failed("{{ 'a'.center(4000000000) }}").contains("padded"));
    for (source, want) in [
        (
            "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
            "out of fuel",
        ),
        (
            "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}",
            "out of fuel",
        ),
        (
            "{% set ns = namespace(l=[1]) %}{% for i in range(31) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l | tojson }}",
            "out of fuel",
        ),
        (
            "{% set ns = namespace(l=[1]) %}{% for i in range(31) %}{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ''.join(ns.l) }}",
            "out of fuel",
        ),
        (
            "{% set ns = namespace(l='a') %}{% for i in range(40) %}{% set ns.l = ns.l ~ ns.l %}{% endfor %}",
            "out of fuel",
        ),
        ("{% set a = 'a' * 1000000 %}{{ a.replace('a', a) }}", "more than 16 MB"),
        ("{% set a = 'a' * 1000000 %}{{ a.replace('', a) }}", "more than 16 MB"),
        ("{% set a = 'a' * 1000000 %}{{ a.join(range(90000) | map('string') | list) }}", "more than 16 MB"),
        ("{{ 'a' * 40000000000 }}", "out of fuel"),
        ("{{ '%4000000000d' | format(1) }}", "out of fuel"),
        ("{{ 'a' | indent(4000000000, true) }}", "out of fuel"),
        ("{{ [1] | batch(4000000000, 'x') | list | length }}", "out of fuel"),
        ("{{ range(4000000000) | list | length }}", "too many elements"),
    ] {
        let why = failed(source);
        assert!(why.contains(want), "{source}: {why}");
    }
}

#[test]
fn case_fo_81c_memory_that_no_fuel_pays_for_is_bounded() {
    let doubled = "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = ns.l + ns.l %}{% endfor %}";
    let template = compile(doubled).unwrap();
    let why = template.render(nothing()).unwrap_err().to_string();
    assert!(why.contains("more than 512 MB of memory"), "{why}");
    // That thread is lost and says so; others work.
    let why = template.render(nothing()).unwrap_err().to_string();
    assert!(why.contains("stuck in an earlier rendering") || why.contains("memory"), "{why}");
    let fine = compile("{{ 'a' * 3 }}").unwrap();
    (0..100).for_each(|_| assert_eq!(fine.render(nothing()).unwrap(), "aaa"));
}

/// What Python's `str.format` prints, from CPython 3.12.
#[test]
fn case_fo_81b_widths_given_as_fields_print_as_in_python() {
    for (source, want) in [
        ("{{ '{:>{}}|'.format('a', 4) }}", "   a|"),
        ("{{ '{:{}{}{}}|'.format('a', '*', '^', 7) }}", "***a***|"),
        ("{{ '{0:.{1}f}'.format(1.5, 3) }}", "1.500"),
        ("{{ '{x:>{w}}|{}'.format('b', x='a', w=3) }}", "  a|b"),
        ("{{ '{{}}{}{{{}}}'.format(1, 2) }}", "{}1{2}"),
        ("{{ '{:4>3}'.format(1) }}", "441"),
    ] {
        assert_eq!(compile(source).unwrap().render(nothing()), Ok(want.into()), "{source}");
    }
    for source in ["{{ '{:{}}'.format(1) }}", "{{ '{'.format(1) }}", "{{ '}'.format(1) }}", "{{ '{:{'.format(1, 2) }}"]
    {
        let why = compile(source).unwrap().render(nothing()).unwrap_err();
        assert!(why.to_string().contains("format: "), "{source}: {why}");
    }
}
