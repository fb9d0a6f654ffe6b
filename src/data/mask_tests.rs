//! Masks of real shapes of template, through the whole path from row to tokens.

use super::formats::Format;
use super::testing::{BOS, CHATML, Fixture, IM_END, IM_START, Model, chat_row, trained_text};
use crate::config::{SystemFallback, TrainOn};
use crate::error::Error;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

fn trained(model: &Model, row: &Json) -> String {
    let tokens = model.tokens(row);
    trained_text(&model.chat(), &tokens)
}

fn refused(model: &Model, row: &Json) -> Error {
    let example = Format::detect(row).unwrap().read(row).unwrap();
    match model.chat().tokens(&example, TrainOn::Assistant, SystemFallback::Stop).unwrap_err() {
        super::chat::Refused::Fatal(e) => e,
        other => panic!("{other:?}"),
    }
}

const TWO: &[(&str, &str)] = &[("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d e")];

#[test]
fn each_turn_trains_through_its_end_token() {
    let model = Fixture::default().build();
    assert_eq!(trained(&model, &chat_row(TWO)), "b<|im_end|>|d e<|im_end|>");
    let last = model.tokens_with(&chat_row(TWO), TrainOn::LastAssistant);
    assert_eq!(trained_text(&model.chat(), &last), "d e<|im_end|>");
    let all = model.tokens_with(&chat_row(TWO), TrainOn::All);
    assert!(!all.row.trained[0] && all.row.trained[1..].iter().all(|t| *t));
}

#[test]
fn templates_of_other_shapes_are_masked_too() {
    // Llama 2 and Mistral: no generation prompt, a blank before the answer, the end token right after it.
    let inst = "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content | trim }}<eos>{% endif %}{% endfor %}";
    let model = Fixture::template(inst).build();
    let row = chat_row(&[("user", "a"), ("assistant", " b "), ("user", "c"), ("assistant", "d")]);
    assert_eq!(trained(&model, &row), "b<eos>|d<eos>");
    // A header that add_generation_prompt doesn't govern: found by what stands before the content.
    let header = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    assert_eq!(trained(&Fixture::template(header).build(), &chat_row(TWO)), "b<|im_end|>|d e<|im_end|>");
    // GLM: the next turn's header is the end token (it is among the model's end ids).
    let glm = "{% for m in messages %}{{ '<eos>' if m.role == 'user' else '<think>' }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<think>{% endif %}";
    assert_eq!(trained(&Fixture::template(glm).build(), &chat_row(TWO)), "b<eos>|d e");
    // The same with a header that ends nothing: it isn't trained, and the turns count as unclosed.
    let open = glm.replace("<eos>", "<tool_call>");
    let model = Fixture::template(&open).build();
    assert_eq!(trained(&model, &chat_row(TWO)), "b|d e");
    assert_eq!(model.tokens(&chat_row(TWO)).unclosed, 2);
}

#[test]
fn generation_marks_win_over_everything() {
    let marked = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content }}{{ '<|im_end|>' }}{% endif %}\n{% endfor %}";
    let model = Fixture::template(marked).build();
    assert_eq!(trained(&model, &chat_row(TWO)), "b<|im_end|>|d e<|im_end|>");
    let last = model.tokens_with(&chat_row(TWO), TrainOn::LastAssistant);
    assert_eq!(trained_text(&model.chat(), &last), "d e<|im_end|>");
}

#[test]
fn a_template_that_cannot_be_masked_is_an_error_and_never_all_ones() {
    for template in [
        // The answer stands twice.
        "{% for m in messages %}{{ m.content }}<eos>{% if m.role == 'assistant' %}{{ m.content }}<eos>{% endif %}{% endfor %}",
        // Everything after the answer depends on it.
        "{% for m in messages %}{{ m.content }}<eos>{{ messages | map(attribute='content') | map('length') | sum }}{% endfor %}",
    ] {
        let error = refused(&Fixture::template(template).build(), &chat_row(TWO));
        assert!(
            error.to_string().contains("can't be masked") && error.to_string().contains("{% generation %}"),
            "{error}"
        );
    }
    // Marks whose text is measured can't be trusted either.
    let measured = "{% for m in messages %}{% set t %}{% generation %}{{ m.content }}{% endgeneration %}{% endset %}{{ t }}{{ t | length }}{% endfor %}";
    let model = Fixture::template(measured).build();
    let example = Format::Messages.read(&chat_row(TWO)).unwrap();
    assert!(model.chat().tokens(&example, TrainOn::Assistant, SystemFallback::Stop).is_err());
}

#[test]
fn case_da_10_bos_exactly_once() {
    let row = chat_row(&[("user", "a"), ("assistant", "b")]);
    for (template, bos) in
        [(format!("{{{{ bos_token }}}}{CHATML}"), "template"), (CHATML.to_string(), "post-processor")]
    {
        let model = Fixture { bos_post: true, template: template.into(), ..Fixture::default() }.build();
        let tokens = model.tokens(&row);
        assert_eq!(tokens.row.ids[..2], [BOS, IM_START]);
        assert_eq!(tokens.row.ids.iter().filter(|i| **i == BOS).count(), 1);
        assert_eq!(tokens.bos, bos);
        let prompt = model.chat().prompt(&[("user", "a")]).unwrap();
        assert_eq!(prompt[..2], [BOS, IM_START]);
        assert_eq!(prompt.iter().filter(|i| **i == BOS).count(), 1);
        assert_eq!(tokens.row.ids[..prompt.len()], prompt, "training and generation see one prompt");
        assert_eq!(model.chat().text_prompt("hi").unwrap(), [BOS, 104, 105]);
        assert_eq!(model.chat().text_prompt("<bos>hi").unwrap(), [BOS, 104, 105]);
    }
    let model = Fixture::default().build();
    assert_eq!(model.tokens(&row).row.ids[0], IM_START);
}

#[test]
fn case_da_11_the_end_token_keeps_its_label_whatever_pads() {
    for pad in [json!("<|im_end|>"), json!(null)] {
        let model = Fixture { config: json!({ "pad_token": pad }), ..Fixture::default() }.build();
        let (short, long) = (
            chat_row(&[("user", "a"), ("assistant", "b")]),
            chat_row(&[("user", "a"), ("assistant", "b b b b b b b b b b b")]),
        );
        let rows = [model.tokens(&short).row, model.tokens(&long).row];
        let batch = super::Batch::new(&[&rows[0], &rows[1]]);
        for (r, row) in rows.iter().enumerate() {
            let end = row.ids.iter().rposition(|i| *i == IM_END).unwrap();
            assert!(row.trained[end]);
            assert_eq!(batch.labels[r * batch.len + end - 1], i64::from(IM_END));
            let padded = &batch.labels[r * batch.len + row.ids.len() - 1..(r + 1) * batch.len];
            assert!(padded.iter().all(|l| *l == super::collate::IGNORE));
        }
    }
}

#[test]
fn case_da_14_the_border_between_prompt_and_answer() {
    let fixture = Fixture { merges: vec![(".m", ".", "m"), ("Ġw", "Ġ", "w")], ..Fixture::default() };
    let model = fixture.build();
    for (prompt, completion, first) in
        [("use .", "mem", ".m"), ("say ", "word", " w"), ("say", " word", " w"), ("é", "è", "è"), ("", "x", "x")]
    {
        let tokens = model.tokens(&json!({"prompt": prompt, "completion": completion}));
        let ids = &tokens.row.ids;
        let joined = model.chat().tokenizer().decode(&ids[..ids.len() - 1], false).unwrap();
        assert_eq!(joined, format!("{prompt}{completion}"));
        assert_eq!((ids.last(), tokens.row.trained.last(), tokens.eos), (Some(&IM_END), Some(&true), "appended"));
        // The first trained token covers the first character of the answer, and every later token is trained.
        let at =
            tokens.offsets.iter().position(|o| o.is_some_and(|(s, e)| s <= prompt.len() && e > prompt.len())).unwrap();
        let expected: Vec<bool> = (0..ids.len()).map(|i| i >= at && i > 0).collect();
        assert_eq!(tokens.row.trained, expected, "{prompt:?} {completion:?}");
        if first.is_ascii() {
            assert_eq!(model.chat().tokenizer().token_text(ids[at]), first);
        }
    }
    let text = model.tokens(&json!({"text": "ab"}));
    assert_eq!(
        (text.row.ids.as_slice(), text.row.trained.as_slice()),
        (&[97, 98, IM_END][..], &[false, true, true][..])
    );
    assert_eq!(model.tokens(&json!({"text": "ab<|im_end|>"})).row.ids, [97, 98, IM_END], "no second end token");
}

/// Drops what stands before `</think>` in all but the last assistant turn, as reasoning models' templates do.
const FORGETFUL: &str = "{% for m in messages %}{% set c = m.content %}{% if m.role == 'assistant' %}{% if not loop.last and '</think>' in c %}{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}{% if m.reasoning_content %}{% set c = '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' + c %}{% elif loop.last and '</think>' not in c %}{% set c = '<think>\\n\\n</think>\\n\\n' + c %}{% endif %}{% endif %}{{ '<|im_start|>' + m.role + '\\n' + c + '<|im_end|>\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

#[test]
fn case_da_15_thinking_that_the_template_drops_is_counted() {
    let model = Fixture::template(FORGETFUL).build();
    let row = chat_row(&[
        ("user", "q"),
        ("assistant", "<think>\nhm\n</think>\n\nb"),
        ("user", "r"),
        ("assistant", "<think>\nso\n</think>\n\nd"),
    ]);
    let tokens = model.tokens(&row);
    assert_eq!(trained_text(&model.chat(), &tokens), "b<|im_end|>|<think>\nso\n</think>\n\nd<|im_end|>");
    assert_eq!(tokens.vanished, "<think>\nhm\n</think>\n\n".chars().count());
    assert!(!tokens.text.contains("hm") && !tokens.inserted.contains(&true));
    let last = model.tokens_with(&row, TrainOn::LastAssistant);
    assert_eq!(trained_text(&model.chat(), &last), "<think>\nso\n</think>\n\nd<|im_end|>");
}

#[test]
fn case_da_15_inserted_thinking_is_trained_and_marked() {
    let model = Fixture::template(FORGETFUL).build();
    let tokens = model.tokens(&chat_row(&[("user", "q"), ("assistant", "b")]));
    assert_eq!(trained_text(&model.chat(), &tokens), "<think>\n\n</think>\n\nb<|im_end|>");
    let marked: Vec<bool> = tokens.inserted.iter().copied().filter(|i| *i).collect();
    assert_eq!(marked.len(), "tnnTnn".len(), "six tokens: two tags and four line ends");
    let row = json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "b", "reasoning_content": "why"}]});
    let tokens = model.tokens(&row);
    assert_eq!(trained_text(&model.chat(), &tokens), "<think>\nwhy\n</think>\n\nb<|im_end|>");
    assert_eq!(tokens.vanished, 0);
    // A template that knows nothing of reasoning_content loses it, and that is counted.
    assert_eq!(Fixture::default().build().tokens(&row).vanished, 3);
}

#[test]
fn case_da_16_both_forms_of_arguments_render_the_same_text() {
    let as_object = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{% for tool_call in m.tool_calls or [] %}<tool_call>{{ tool_call.name }} {{ tool_call.arguments | tojson }}{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    // Prints them as they are: only text comes out as JSON.
    let as_text = as_object.replace("tool_call.arguments | tojson", "tool_call.arguments");
    for template in [as_object, &as_text] {
        let model = Fixture::template(template).build();
        for (name, object, text) in [("a", json!({"x": 1}), r#"{"x": 1}"#), ("b", json!({"y": "s"}), r#"{"y":"s"}"#)] {
            let row = |arguments: Json| {
                json!({"messages": [{"role": "user", "content": "q"},
                    {"role": "assistant", "content": null, "tool_calls": [{"name": name, "arguments": arguments}]}]})
            };
            let (from_object, from_text) = (model.tokens(&row(object.clone())), model.tokens(&row(text.into())));
            assert_eq!(from_object, from_text);
            let want = format!("<tool_call>{name} {}<|im_end|>", super::template::dumps(&object));
            assert_eq!(trained_text(&model.chat(), &from_object), want, "{template}");
        }
    }
}

#[test]
fn tool_turns_that_only_stand_with_their_calls_are_found_by_prefixes() {
    let strict = "{% for m in messages %}{% if m.role == 'assistant' and loop.index0 % 2 == 1 and not m.tool_calls %}{{ raise_exception('a call is due') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}{{ m.tool_calls | tojson if m.tool_calls }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let model = Fixture::template(strict).build();
    let row = json!({"messages": [{"role": "user", "content": "q"},
        {"role": "assistant", "content": null, "tool_calls": [{"name": "f", "arguments": {}}]}, {"role": "tool", "content": "7"},]});
    assert_eq!(trained(&model, &row), "[{\"name\": \"f\", \"arguments\": {}}]<|im_end|>");
}

#[test]
fn prompt_and_completion_as_messages_train_the_completion_only() {
    let model = Fixture::default().build();
    let row = json!({"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}],
        "completion": [{"role": "assistant", "content": "d"}]});
    assert_eq!(trained(&model, &row), "d<|im_end|>");
}

#[test]
fn text_of_more_than_one_byte_a_character_is_masked_whole() {
    let model = Fixture::default().build();
    assert_eq!(model.tokens(&chat_row(&[("user", "日"), ("assistant", "é😀")])).row.trained_tokens(), 2 + 4 + 1);
}

/// Text that looks like turns, tags and marks, in pieces.
fn said() -> impl Strategy<Value = String> {
    let pieces = [
        "<|im_end|>\n<|im_start|>assistant\n",
        "<|im_end|>",
        "<think>",
        "</think>",
        " ",
        "\n",
        "é",
        "日",
        "\u{fdd0}",
        "a",
        "b",
        "'",
        "{{ x }}",
    ];
    prop::collection::vec(prop::sample::select(pieces.to_vec()), 0..6).prop_map(|p| p.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_said_the_assistants_bytes_train_and_no_others(turns in prop::collection::vec((said(), said()), 1..4)) {
        let model = Fixture::default().build();
        let list: Vec<Json> = turns.iter()
            .flat_map(|(u, a)| [super::testing::turn("user", u), super::testing::turn("assistant", &format!("{a}x"))])
            .collect();
        let tokens = model.tokens(&json!({ "messages": list }));
        let (mut text, mut want) = (String::new(), Vec::new());
        for (u, a) in &turns {
            text += &format!("<|im_start|>user\n{u}<|im_end|>\n<|im_start|>assistant\n");
            let start = text.len();
            text += &format!("{a}x<|im_end|>");
            want.push(start..text.len());
            text += "\n";
        }
        prop_assert_eq!(&tokens.text, &text);
        for (offsets, trained) in tokens.offsets.iter().zip(&tokens.row.trained) {
            let (s, e) = offsets.unwrap();
            prop_assert_eq!(*trained, want.iter().any(|r| s >= r.start && e <= r.end), "{:?} {:?}", (s, e), &text);
        }
    }
}
