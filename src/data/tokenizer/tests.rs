//! Files beside the weights: which template counts, what a broken one says.

use super::super::chat::{Chat, ModelFiles};
use super::super::template::Date;
use super::super::testing::{Fixture, Model, VOCAB, write};
use super::Tokenizer;
use crate::checkpoint::SpecialIds;
use crate::error::ExitCode;
use serde_json::{Value as Json, json};

fn open_error(model: &Model) -> String {
    let error = model.try_chat().unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Usage);
    error.to_string()
}

fn prompt_text(chat: &Chat) -> String {
    chat.tokenizer().decode(&chat.prompt(&[("user", "a")]).unwrap(), false).unwrap()
}

#[test]
fn case_da_21_where_the_template_comes_from() {
    let named = |name: &str, text: &str| json!({"name": name, "template": text});
    let list = Json::Array(vec![named("tool_use", "T"), named("default", "D{{ messages[0].content }}")]);
    let model = Fixture { template: list, ..Fixture::default() }.build();
    assert_eq!(prompt_text(&model.chat()), "Da");
    assert_eq!(model.chat().template_origin(), Some("tokenizer_config.json, 'default'"));
    // A separate file wins over the config, a file named in data.template over both.
    std::fs::write(model.dir.path().join("chat_template.jinja"), "J{{ messages[0].content }}\n").unwrap();
    assert_eq!(prompt_text(&model.chat()), "Ja");
    let own = model.dir.path().join("own.jinja");
    std::fs::write(&own, "O{{ messages[0].content }}").unwrap();
    let chat = Chat::open(model.files(), Some(&own), Date::from_unix(0)).unwrap();
    assert_eq!((prompt_text(&chat).as_str(), chat.template_origin()), ("Oa", Some("own.jinja")));

    let two = Json::Array(vec![named("rag", "R"), named("tool_use", "T")]);
    assert!(open_error(&Fixture { template: two, ..Fixture::default() }.build()).contains("rag, tool_use"));
    let one = Json::Array(vec![named("only", "{{ messages[0].content }}")]);
    assert_eq!(prompt_text(&Fixture { template: one, ..Fixture::default() }.build().chat()), "a");
}

#[test]
fn case_da_21_what_is_not_supported_is_named_with_its_line_at_import() {
    for (template, parts) in [
        ("a\n{{ x | no_such }}", ["line 2", "no filter is named 'no_such'"]),
        ("{# #}\n\n{% if x is no_such %}{% endif %}", ["line 3", "no test is named 'no_such'"]),
        ("\n{% frobnicate %}", ["line 2", "unknown statement"]),
        ("\n\n{{ lipsum() }}", ["line 3", "lipsum"]),
        ("\n{% if messages %}", ["chat template (tokenizer_config.json)", "line 2"]),
        ("{{ messages[0].content.casefold() }}", ["line 1", "casefold"]),
    ] {
        let message = open_error(&Fixture::template(template).build());
        for part in parts {
            assert!(message.contains(part), "{template:?}: {message}");
        }
    }
}

#[test]
fn a_hostile_template_ends() {
    let error = open_error(
        &Fixture::template("{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}").build(),
    );
    assert!(error.contains("fuel"), "{error}");
    let error = open_error(&Fixture::template("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").build());
    assert!(error.contains("recursion"), "{error}");
    assert!(!open_error(&Fixture::template("{% \u{1b}[2J %}").build()).contains('\u{1b}'));
}

#[test]
fn broken_files_are_named() {
    let model = Fixture::default().build();
    let path = model.dir.path().join("tokenizer.json");
    std::fs::write(&path, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n").unwrap();
    assert!(open_error(&model).contains("Git-LFS pointer"));
    std::fs::write(&path, "{}").unwrap();
    assert!(open_error(&model).contains("isn't a tokenizer"));
    std::fs::remove_file(&path).unwrap();
    assert!(open_error(&model).contains("missing"));
    std::fs::write(model.dir.path().join("tokenizer.model"), "x").unwrap();
    assert!(open_error(&model).contains("convert the slow tokenizer"));
    let model = Fixture::default().build();
    std::fs::write(model.dir.path().join("tokenizer_config.json"), "{").unwrap();
    assert!(open_error(&model).contains("tokenizer_config.json"));
}

#[test]
fn ids_without_an_embedding_row_are_refused() {
    let model = Fixture { config: json!({"eos_token": "<bos>"}), ..Fixture::default() }.build();
    let files = ModelFiles { vocab: VOCAB - 4, ..model.files() };
    let chat = Chat::open(files, None, Date::from_unix(0)).unwrap();
    assert!(chat.tokenizer().encode("abc").is_ok());
    let error = chat.tokenizer().encode("<|im_end|>").unwrap_err().to_string();
    assert!(error.contains("id 260 ('<|im_end|>')") && error.contains("260 rows"), "{error}");
}

#[test]
fn added_tokens_that_would_change_their_number_are_refused() {
    let model = Fixture::default().build();
    let path = model.dir.path().join("tokenizer.json");
    let mut json: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["model"]["vocab"]["zz"] = 300.into();
    write(model.dir.path(), "tokenizer.json", &json);
    let error = open_error(&model);
    assert!(error.contains("'<pad>' should have id 256 but gets 257"), "{error}");
}

#[test]
fn special_tokens_come_from_the_tokenizer_first() {
    let special = SpecialIds { bos: Some(1), eos: vec![258, 7], pad: None };
    let model = Fixture {
        special,
        config: json!({"eos_token": {"content": "<|im_end|>"}, "pad_token": null}),
        ..Fixture::default()
    }
    .build();
    write(model.dir.path(), "special_tokens_map.json", &json!({"pad_token": "<pad>", "unk_token": "<eos>"}));
    let t = Tokenizer::open(model.dir.path(), VOCAB, &model.special).unwrap();
    // The older map comes before a config without added_tokens_decoder, as in transformers 5.19.
    assert_eq!((t.bos(), t.eos(), t.pad(), t.stops()), (Some(257), Some(260), Some(256), &[258, 7, 260][..]));
    assert!(t.specials().contains(&("unk_token".into(), "<eos>".into())));
    assert_eq!(t.token_text(260), "<|im_end|>");
    assert_eq!(t.special_at("<|im_end|>\n"), Some((10, 260)));
    assert_eq!(t.special_at("x<|im_end|>"), None);
}

#[test]
fn length_limits_in_the_file_are_ours_to_apply() {
    let model = Fixture::default().build();
    let path = model.dir.path().join("tokenizer.json");
    let mut json: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json["truncation"] = json!({"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0});
    json["padding"] = json!({"strategy": {"Fixed": 16}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 256, "pad_type_id": 0, "pad_token": "<pad>"});
    write(model.dir.path(), "tokenizer.json", &json);
    assert_eq!(model.chat().tokenizer().encode("abcdefgh").unwrap().ids.len(), 8);
}
