//! The five row formats, found per file and brought to three: a conversation, a prompt with its completion, a text.
//!
//! A file's format is that of its first row, tried in this order (a row that fits two is the first):
//! 1. `messages`: a list under `messages`;
//! 2. `sharegpt`: a list under `conversations` or `conversation`;
//! 3. `prompt_completion`: `prompt` and `completion`, both text or both lists of messages;
//! 4. `alpaca`: `instruction` and `output`, with `input`, `system` and `history` if there;
//! 5. `text`: `text`.
//!
//! In both lists a message may be `{role, content}` or `{from, value}`. `data.format` overrides the order.

use super::messages::{Conversation, Reason, Turn, conversation, kind, turns, without_media};
use super::template::clean;
use crate::config::DataFormat;
use serde_json::{Map, Value as Json};

/// A row's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `messages`
    Messages,
    /// `sharegpt`
    ShareGpt,
    /// `prompt_completion`
    PromptCompletion,
    /// `alpaca`
    Alpaca,
    /// `text`
    Text,
}

/// What a row asks to be trained on.
#[derive(Clone, Debug, PartialEq)]
pub enum Example {
    /// Rendered with the chat template; assistant turns train.
    Conversation(Conversation),
    /// Joined as they are; the completion trains.
    PromptCompletion {
        /// Not trained.
        prompt: String,
        /// Trained, with an end token.
        completion: String,
    },
    /// All of it trains, with an end token.
    Text(String),
}

impl Format {
    /// In the order in which they are tried.
    pub const ALL: [Format; 5] =
        [Format::Messages, Format::ShareGpt, Format::PromptCompletion, Format::Alpaca, Format::Text];

    /// As `data.format` names it.
    #[must_use]
    pub fn name(self) -> &'static str {
        let named = match self {
            Format::Messages => DataFormat::Messages,
            Format::ShareGpt => DataFormat::ShareGpt,
            Format::PromptCompletion => DataFormat::PromptCompletion,
            Format::Alpaca => DataFormat::Alpaca,
            Format::Text => DataFormat::Text,
        };
        named.name()
    }

    /// The format that `data.format` names; `None` where it is found by the columns, or rows are token ids.
    #[must_use]
    pub fn named(name: DataFormat) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.name() == name.name())
    }

    /// The first format that `row` has the fields of.
    #[must_use]
    pub fn detect(row: &Json) -> Option<Format> {
        Format::ALL.into_iter().find(|f| f.fits(row))
    }

    fn fits(self, row: &Json) -> bool {
        let has = |key: &str| row.get(key).is_some();
        match self {
            Format::Messages => has("messages"),
            Format::ShareGpt => has("conversations") || has("conversation"),
            Format::PromptCompletion => has("prompt") && has("completion"),
            Format::Alpaca => has("instruction") && has("output"),
            Format::Text => has("text"),
        }
    }

    /// Reads `row` in this format.
    ///
    /// # Errors
    /// Why the row can't be used.
    pub fn read(self, row: &Json) -> Result<Example, Reason> {
        let Json::Object(map) = row else {
            return Err(format!("the row is {}, not an object", kind(row)));
        };
        if !self.fits(row) {
            return Err(format!("the row isn't in the file's format ({})", self.name()));
        }
        without_media(map)?;
        let example = match self {
            Format::Messages => Example::Conversation(conversation(map, "messages")?),
            Format::ShareGpt => {
                let key = if map.contains_key("conversations") { "conversations" } else { "conversation" };
                Example::Conversation(conversation(map, key)?)
            }
            Format::PromptCompletion => prompt_completion(map)?,
            Format::Alpaca => Example::Conversation(alpaca(map)?),
            Format::Text => Example::Text(filled(map, "text")?),
        };
        match &example {
            Example::Conversation(c) if !c.turns.iter().any(|t| t.role() == "assistant") => {
                Err("no assistant turn".into())
            }
            Example::Conversation(c) if !c.turns.iter().any(|t| t.role() == "assistant" && t.train) => {
                Err("no assistant turn to train".into())
            }
            _ => Ok(example),
        }
    }
}

/// The fields of a row that fits no format, for the message that says so.
#[must_use]
pub fn fields(row: &Json) -> String {
    match row {
        Json::Object(map) => {
            let names: Vec<_> = map.keys().take(8).map(|k| format!("`{}`", clean(k))).collect();
            if names.is_empty() { "no fields".into() } else { names.join(", ") }
        }
        other => kind(other).to_string(),
    }
}

/// Text of a field, which may be empty or absent.
fn optional<'r>(row: &'r Map<String, Json>, key: &str) -> Result<&'r str, Reason> {
    match row.get(key) {
        None | Some(Json::Null) => Ok(""),
        Some(Json::String(s)) => Ok(s),
        Some(other) => Err(format!("`{key}` is {}, not text", kind(other))),
    }
}

/// Text of a field that must say something.
fn filled(row: &Map<String, Json>, key: &str) -> Result<String, Reason> {
    match row.get(key) {
        Some(Json::String(s)) if s.trim().is_empty() => Err(format!("`{key}` is empty")),
        Some(Json::String(s)) => Ok(s.clone()),
        Some(other) => Err(format!("`{key}` is {}, not text", kind(other))),
        None => Err(format!("`{key}` is missing")),
    }
}

fn alpaca(row: &Map<String, Json>) -> Result<Conversation, Reason> {
    let (instruction, output) = (filled(row, "instruction")?, filled(row, "output")?);
    let (input, system) = (optional(row, "input")?, optional(row, "system")?);
    let mut out = Vec::new();
    if !system.trim().is_empty() {
        out.push(Turn::new("system", system, false));
    }
    match row.get("history") {
        None | Some(Json::Null) => {}
        Some(Json::Array(pairs)) => {
            for pair in pairs {
                let (Some(asked), Some(answered)) =
                    (pair.get(0).and_then(Json::as_str), pair.get(1).and_then(Json::as_str))
                else {
                    return Err("`history` isn't a list of pairs of texts".into());
                };
                out.push(Turn::new("user", asked, false));
                out.push(Turn::new("assistant", answered, true));
            }
        }
        Some(other) => return Err(format!("`history` is {}, not a list", kind(other))),
    }
    let question = if input.trim().is_empty() { instruction } else { format!("{instruction}\n\n{input}") };
    out.push(Turn::new("user", &question, false));
    out.push(Turn::new("assistant", &output, true));
    Ok(Conversation { turns: out, ..Conversation::default() })
}

fn prompt_completion(row: &Map<String, Json>) -> Result<Example, Reason> {
    if let (Some(Json::Array(_)), Some(completion)) = (row.get("prompt"), row.get("completion")) {
        let mut all = conversation(row, "prompt")?;
        for turn in &mut all.turns {
            turn.train = false;
        }
        all.turns.extend(turns(completion, "completion", true)?);
        return Ok(Example::Conversation(all));
    }
    let completion = filled(row, "completion")?;
    Ok(Example::PromptCompletion { prompt: optional(row, "prompt")?.to_string(), completion })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn chat(row: &Json) -> Vec<(String, String)> {
        match Format::detect(row).unwrap().read(row).unwrap() {
            Example::Conversation(c) => {
                c.turns.iter().map(|t| (t.role().to_string(), t.content().unwrap_or("-").to_string())).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn reason(row: &Json) -> String {
        Format::detect(row).unwrap().read(row).unwrap_err()
    }

    #[test]
    fn case_da_06_each_format_is_found_and_read() {
        let ab = [("user".to_string(), "a".to_string()), ("assistant".to_string(), "b".to_string())];
        for (row, format) in [
            (
                json!({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
                Format::Messages,
            ),
            (
                json!({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}),
                Format::ShareGpt,
            ),
            (
                json!({"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}),
                Format::ShareGpt,
            ),
            (json!({"messages": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}), Format::Messages),
            (json!({"instruction": "a", "input": "", "output": "b"}), Format::Alpaca),
            (json!({"instruction": "a", "input": null, "output": "b"}), Format::Alpaca),
            (
                json!({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}),
                Format::PromptCompletion,
            ),
        ] {
            assert_eq!(Format::detect(&row), Some(format), "{row}");
            assert_eq!(chat(&row), ab, "{row}");
        }
        let row = json!({"prompt": "a", "completion": "b"});
        let want = Example::PromptCompletion { prompt: "a".into(), completion: "b".into() };
        assert_eq!(Format::detect(&row).unwrap().read(&row), Ok(want));
        let row = json!({"text": "a"});
        assert_eq!(Format::detect(&row).unwrap().read(&row), Ok(Example::Text("a".into())));
        assert_eq!(chat(&json!({"instruction": "a", "input": "x", "output": "b"}))[0].1, "a\n\nx");
        assert_eq!(Format::detect(&json!({"question": "a"})), None);
    }

    #[test]
    fn case_da_06_a_row_that_fits_two_formats_is_the_first() {
        let row =
            json!({"text": "t", "prompt": "p", "completion": "c", "messages": [], "instruction": "i", "output": "o"});
        assert_eq!(Format::detect(&row), Some(Format::Messages));
        let row = json!({"text": "t", "prompt": "p", "completion": "c", "instruction": "i", "output": "o"});
        assert_eq!(Format::detect(&row), Some(Format::PromptCompletion));
        assert_eq!(Format::named(DataFormat::Alpaca), Some(Format::Alpaca));
        assert_eq!(
            Format::Alpaca.read(&row).unwrap(),
            Format::Alpaca.read(&json!({"instruction": "i", "output": "o"})).unwrap()
        );
        assert!(Format::ALL.iter().all(|f| f.name().parse().map(Format::named) == Ok(Some(*f))));
    }

    #[test]
    fn case_da_06_unknown_roles_are_named() {
        let row = json!({"messages": [{"role": "narrator\u{1b}[2J", "content": "a"}]});
        assert_eq!(reason(&row), "unknown role 'narrator\\u{1b}[2J'");
    }

    #[test]
    fn case_da_07_wrong_types_and_empty_fields_have_reasons() {
        for (row, want) in [
            (json!({"instruction": "x", "output": {"a": 1}}), "`output` is an object, not text"),
            (json!({"instruction": "x", "output": 5}), "`output` is a number, not text"),
            (json!({"instruction": "x", "output": ""}), "`output` is empty"),
            (json!({"messages": []}), "`messages` is empty"),
            (json!({"messages": null}), "`messages` is null, not a list"),
            (json!({"messages": [{"role": "user", "content": "a"}]}), "no assistant turn"),
            (
                json!({"messages": [{"role": "user", "content": {"a": 1}}]}),
                "`content` of a message is an object, not text",
            ),
            (json!({"messages": [{"role": "user", "content": null}]}), "`content` of a message is null"),
            (json!({"messages": [{"role": "assistant", "content": " "}]}), "an assistant turn is empty"),
            (json!({"messages": ["a"]}), "a message is text, not an object"),
            (json!({"messages": [{"content": "a"}]}), "a message has no `role` (or `from`)"),
            (json!({"text": " \n"}), "`text` is empty"),
            (json!({"prompt": "a", "completion": [1]}), "`completion` is a list, not text"),
            (json!({"prompt": [], "completion": "b"}), "`prompt` is empty"),
        ] {
            assert_eq!(reason(&row), want, "{row}");
        }
        assert_eq!(Format::Text.read(&json!(5)).unwrap_err(), "the row is a number, not an object");
    }

    #[test]
    fn case_da_16_tool_arguments_come_to_one_form() {
        let row = |arguments: Json, tools: Json| {
            json!({"tools": tools, "messages": [{"role": "user", "content": "q"},
                {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "a", "arguments": arguments}}]}]})
        };
        let schema = json!([{"name": "a", "parameters": {"x": {"type": "integer"}}}]);
        let object = Format::Messages.read(&row(json!({"x": 1}), schema.clone())).unwrap();
        let text = Format::Messages.read(&row(json!("{\"x\": 1}"), json!(schema.to_string()))).unwrap();
        assert_eq!(object, text);
        let Example::Conversation(c) = object else { panic!() };
        let call = &c.turns[1].message["tool_calls"][0]["function"]["arguments"];
        assert_eq!(call.to_string(), r#"{"x":1}"#);
        assert_eq!(c.tools.unwrap()[0], json!({"type": "function", "function": schema[0]}));
        let flat = json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [{"name": "b", "arguments": "{\"y\":\"s\"}"}]}]});
        let Example::Conversation(c) = Format::Messages.read(&flat).unwrap() else { panic!() };
        assert_eq!(c.turns[0].message["tool_calls"][0]["arguments"].to_string(), r#"{"y":"s"}"#);
        assert_eq!(reason(&row(json!("{x: 1}"), schema)), "tool call arguments aren't JSON (message 1)");
        assert_eq!(reason(&row(json!("{}"), json!("nope"))), "`tools` isn't JSON");
    }

    #[test]
    fn sharegpt_function_calls_become_tool_calls() {
        let row = json!({"conversations": [{"from": "human", "value": "q"},
            {"from": "function_call", "value": "{\"name\": \"a\", \"arguments\": {\"x\": 1}}"},
            {"from": "observation", "value": "7"}, {"from": "gpt", "value": "seven"}], "system": "s"});
        let roles: Vec<_> = chat(&row).into_iter().map(|t| t.0).collect();
        assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    }

    #[test]
    fn text_parts_are_joined_and_other_parts_refused() {
        let parts =
            |p: Json| json!({"messages": [{"role": "user", "content": p}, {"role": "assistant", "content": "b"}]});
        assert_eq!(chat(&parts(json!([{"type": "text", "text": "x"}, {"type": "text", "text": "y"}])))[0].1, "xy");
        assert!(reason(&parts(json!([{"type": "image"}]))).contains("parts that aren't text"));
    }

    fn conversation_of(row: &Json) -> Conversation {
        match Format::detect(row).unwrap().read(row).unwrap() {
            Example::Conversation(c) => c,
            other => panic!("{other:?}"),
        }
    }

    /// A conversation whose assistant message also holds `key`.
    fn with_field(key: &str, value: Json) -> Json {
        let mut row = json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]});
        row["messages"][1][key] = value;
        row
    }

    #[test]
    fn case_fo_12b_a_mask_or_weight_is_used_or_refused() {
        for (key, off, on) in [
            ("weight", json!(0), json!(1)),
            ("loss_weight", json!(0.0), json!(1.0)),
            ("train", json!(false), json!(true)),
            ("loss", json!(false), json!(true)),
            ("mask", json!(true), json!(false)),
        ] {
            assert_eq!(reason(&with_field(key, off)), "no assistant turn to train", "{key}");
            assert!(conversation_of(&with_field(key, on)).turns[1].train, "{key}");
            assert!(conversation_of(&with_field(key, Json::Null)).turns[1].train, "{key}: null is absent");
            assert!(reason(&with_field(key, json!(0.5))).contains(key), "{key}");
            assert!(reason(&with_field(key, json!("x"))).contains(key), "{key}");
        }
    }

    #[test]
    fn case_fo_22_tools_as_json_texts_are_read() {
        let schema = json!({"type": "function", "function": {"name": "f", "parameters": {}}});
        let mut row = with_field("name", json!("n"));
        for tools in [json!([schema.to_string()]), json!([schema]), json!(json!([schema]).to_string())] {
            row["tools"] = tools;
            assert_eq!(conversation_of(&row).tools.unwrap(), std::slice::from_ref(&schema));
        }
        row["tools"] = json!(["{broken"]);
        assert_eq!(reason(&row), "a tool of `tools` isn't JSON");
        row["tools"] = json!([5]);
        assert_eq!(reason(&row), "a tool of `tools` is a number, not an object");
    }

    #[test]
    fn case_fo_23_bare_tool_schemas_are_wrapped() {
        let bare = json!({"name": "f", "description": "d", "parameters": {"type": "object"}});
        let mut row = with_field("name", json!("n"));
        for tools in [json!([bare]), json!([bare.to_string()])] {
            row["tools"] = tools;
            assert_eq!(conversation_of(&row).tools.unwrap(), [json!({"type": "function", "function": bare})]);
        }
    }

    #[test]
    fn case_fo_25_images_are_refused_by_their_field() {
        for key in ["images", "image", "videos", "audio"] {
            for mut row in [
                with_field("name", json!("n")),
                json!({"text": "<image> t"}),
                json!({"prompt": "<image>", "completion": "c"}),
                json!({"instruction": "i", "output": "o"}),
            ] {
                row[key] = json!(["a.png"]);
                assert!(reason(&row).starts_with(&format!("`{key}` holds what isn't text")), "{row}");
                row[key] = json!([]);
                assert!(Format::detect(&row).unwrap().read(&row).is_ok(), "an empty list holds nothing: {row}");
                row[key] = Json::Null;
                assert!(Format::detect(&row).unwrap().read(&row).is_ok(), "{row}");
            }
            assert!(reason(&with_field(key, json!("a.png"))).contains(key));
        }
    }

    #[test]
    fn case_fo_29_roles_are_compared_without_case() {
        for (name, role) in [
            ("System", "system"),
            ("USER", "user"),
            ("Human", "user"),
            ("GPT", "assistant"),
            ("ASSISTANT", "assistant"),
            ("Tool", "tool"),
        ] {
            let row = json!({"conversations": [{"from": name, "value": "x"}, {"from": "gpt", "value": "y"}]});
            assert_eq!(conversation_of(&row).turns[0].role(), role, "{name}");
        }
    }

    #[test]
    fn case_fo_34_an_absent_content_stays_absent_and_null_stays_null() {
        let call = json!([{"type": "function", "function": {"name": "f", "arguments": {}}}]);
        let mut row = json!({"messages": [{"role": "assistant", "tool_calls": call}]});
        assert!(conversation_of(&row).turns[0].message.get("content").is_none());
        row["messages"][0]["content"] = Json::Null;
        assert_eq!(conversation_of(&row).turns[0].message.get("content"), Some(&Json::Null));
        row["messages"][0]["reasoning_content"] = Json::Null;
        assert!(conversation_of(&row).turns[0].message.get("reasoning_content").is_none(), "null is absent");
    }

    #[test]
    fn weights_and_prompts_switch_turns_off() {
        let row = json!({"messages": [{"role": "assistant", "content": "a", "weight": 0}, {"role": "assistant", "content": "b", "weight": 1}]});
        let Example::Conversation(c) = Format::Messages.read(&row).unwrap() else { panic!() };
        assert_eq!(c.turns.iter().map(|t| t.train).collect::<Vec<_>>(), [false, true]);
        assert!(c.turns[0].message.get("weight").is_none());
        let row = json!({"messages": [{"role": "assistant", "content": "a", "train": false}]});
        assert_eq!(reason(&row), "no assistant turn to train");
    }
}
