//! One conversation from any of the shapes that chat data comes in: roles under one name, contents as text, tool
//! calls as objects. What can't be read is a reason, said once per kind with the first line it was met on.

use super::template::clean;
use serde_json::{Map, Value as Json};

/// Why a row can't be used: short, without anything that differs from row to row, so that equal ones are counted.
pub type Reason = String;

/// One message, ready for a chat template.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The message as the template sees it: `role`, `content` and what else the data holds.
    pub message: Json,
    /// Whether this turn may be trained, if it is an assistant's.
    pub train: bool,
}

impl Turn {
    /// A turn of `role` saying `content`.
    #[must_use]
    pub fn new(role: &str, content: &str, train: bool) -> Turn {
        Turn { message: serde_json::json!({"role": role, "content": content}), train }
    }
    /// `system`, `user`, `assistant`, `tool`, …
    #[must_use]
    pub fn role(&self) -> &str {
        self.message["role"].as_str().unwrap_or_default()
    }
    /// The content, where it is text.
    #[must_use]
    pub fn content(&self) -> Option<&str> {
        self.message.get("content")?.as_str()
    }
    /// Thinking kept apart from the content, under any of its usual names.
    #[must_use]
    pub fn reasoning(&self) -> Option<&str> {
        ["reasoning_content", "reasoning", "thinking"].into_iter().find_map(|k| self.message.get(k)?.as_str())
    }
    /// Whether it calls tools.
    #[must_use]
    pub fn calls_tools(&self) -> bool {
        self.message.get("tool_calls").is_some()
    }
}

/// A conversation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversation {
    /// In order.
    pub turns: Vec<Turn>,
    /// Tool schemas.
    pub tools: Option<Vec<Json>>,
    /// Variables for the template, from `chat_template_kwargs`.
    pub kwargs: Option<Map<String, Json>>,
}

/// The role a name stands for, whatever its case; `None` if nothing is known about it.
fn role(name: &str) -> Option<&'static str> {
    Some(match name.trim().to_lowercase().as_str() {
        "system" => "system",
        "developer" => "developer",
        "user" | "human" | "prompter" => "user",
        "assistant" | "gpt" | "model" | "chatgpt" | "bot" | "ai" | "bard" | "bing" => "assistant",
        "tool" | "function" | "observation" | "function_response" | "tool_response" | "ipython" => "tool",
        "function_call" | "tool_call" => "function_call",
        _ => return None,
    })
}

/// The list of messages in `row[key]`, with the row's tools and template variables.
///
/// # Errors
/// Why the row can't be used.
pub fn conversation(row: &Map<String, Json>, key: &str) -> Result<Conversation, Reason> {
    let mut out = Conversation { turns: turns(&row[key], key, true)?, tools: tools(row)?, kwargs: None };
    if let Some(Json::String(system)) = row.get("system")
        && !system.trim().is_empty()
        && !out.turns.iter().any(|t| t.role() == "system")
    {
        out.turns.insert(0, Turn::new("system", system, false));
    }
    out.kwargs = row.get("chat_template_kwargs").and_then(Json::as_object).cloned();
    Ok(out)
}

/// Fields of a row or message that hold what no text model sees.
const MEDIA: [&str; 9] =
    ["images", "image", "videos", "video", "audios", "audio", "image_url", "pixel_values", "bboxes"];

/// Refuses images, video and sound by the field that holds them: their places in the text would train as letters.
///
/// # Errors
/// The field's name.
pub fn without_media(map: &Map<String, Json>) -> Result<(), Reason> {
    let filled = |v: &Json| match v {
        Json::Null | Json::Bool(false) => false,
        Json::String(s) => !s.is_empty(),
        Json::Array(items) => items.iter().any(|i| !i.is_null()),
        Json::Object(map) => !map.is_empty(),
        _ => true,
    };
    match MEDIA.into_iter().find(|key| map.get(*key).is_some_and(filled)) {
        Some(key) => Err(format!("`{key}` holds what isn't text; only text is trained")),
        None => Ok(()),
    }
}

/// Turns out of a list of messages; assistant turns of which may be trained if `train`.
///
/// # Errors
/// Why the row can't be used.
pub fn turns(list: &Json, key: &str, train: bool) -> Result<Vec<Turn>, Reason> {
    let Json::Array(items) = list else {
        return Err(format!("`{key}` is {}, not a list", kind(list)));
    };
    if items.is_empty() {
        return Err(format!("`{key}` is empty"));
    }
    items.iter().enumerate().map(|(i, item)| turn(item, i, train)).collect()
}

fn turn(item: &Json, index: usize, train: bool) -> Result<Turn, Reason> {
    let Json::Object(map) = item else {
        return Err(format!("a message is {}, not an object", kind(item)));
    };
    without_media(map)?;
    let mut map = map.clone();
    // A null says that there is nothing; only `content` keeps one, since templates ask for it by `is none`.
    map.retain(|key, value| !value.is_null() || key == "content" || key == "value");
    let (role_key, name) = match (map.get("role"), map.get("from")) {
        (Some(Json::String(name)), _) => ("role", name.clone()),
        (None, Some(Json::String(name))) => ("from", name.clone()),
        _ => return Err("a message has no `role` (or `from`)".into()),
    };
    let content_key = if map.contains_key("content") || !map.contains_key("value") { "content" } else { "value" };
    let Some(mut role) = role(&name) else {
        return Err(format!("unknown role '{}'", clean(&name).chars().take(40).collect::<String>()));
    };
    let mut content = text(map.get(content_key).unwrap_or(&Json::Null))
        .map_err(|what| format!("`{content_key}` of a message is {what}, not text"))?;
    let called = role == "function_call";
    if called {
        role = "assistant";
        let call =
            content.as_deref().and_then(|c| serde_json::from_str::<Json>(c).ok()).filter(|c| c.get("name").is_some());
        let Some(call) = call else {
            return Err(format!("the function call isn't JSON with a name (message {index})"));
        };
        map.insert("tool_calls".into(), serde_json::json!([{"type": "function", "function": call}]));
        content = None;
    }
    if matches!(map.get("tool_calls"), Some(Json::Null))
        || map.get("tool_calls").is_some_and(|c| c == &Json::Array(vec![]))
    {
        map.remove("tool_calls");
    }
    if let Some(calls) = map.get_mut("tool_calls") {
        tool_calls(calls, index)?;
    }
    if content.is_none() && !(role == "assistant" && map.contains_key("tool_calls")) {
        return Err("`content` of a message is null".into());
    }
    // `role` and `content` under their one spelling, then whatever else the data holds, in its order: templates that
    // print a whole message show it.
    let absent = content.is_none() && !map.contains_key(content_key) && !called;
    let wanted = trains(&map)?;
    let mut message = Map::new();
    message.insert("role".into(), role.into());
    if !absent {
        message.insert("content".into(), content.map_or(Json::Null, Json::String));
    }
    let own = [role_key, content_key, "role", "content", "weight", "train", "loss", "loss_weight", "mask"];
    message.extend(map.into_iter().filter(|(k, _)| !own.contains(&k.as_str())));
    let turn = Turn { message: Json::Object(message), train: train && wanted };
    let silent = turn.content().is_none_or(|c| c.trim().is_empty()) && turn.reasoning().is_none_or(str::is_empty);
    if role == "assistant" && silent && !turn.calls_tools() {
        return Err("an assistant turn is empty".into());
    }
    Ok(turn)
}

/// Whether a message may be trained, by `weight`, `loss_weight` (0 or 1), `train`, `loss` (true or false) and `mask`
/// (true: left out).
fn trains(map: &Map<String, Json>) -> Result<bool, Reason> {
    let mut wanted = true;
    for key in ["weight", "loss_weight", "train", "loss", "mask"] {
        let Some(value) = map.get(key) else { continue };
        let on = match (value, value.as_f64()) {
            (Json::Bool(on), _) => *on,
            (_, Some(1.0)) => true,
            (_, Some(0.0)) => false,
            _ => {
                return Err(format!("`{key}` of a message is neither 0 nor 1, and parts of a weight can't be trained"));
            }
        };
        wanted &= on != (key == "mask");
    }
    Ok(wanted)
}

/// Text of a content: a string, or a list of text parts; `None` for null.
fn text(content: &Json) -> Result<Option<String>, &'static str> {
    match content {
        Json::Null => Ok(None),
        Json::String(s) => Ok(Some(s.clone())),
        Json::Array(parts) => {
            let mut out = String::new();
            for part in parts {
                match (part, part.get("type").and_then(Json::as_str), part.get("text")) {
                    (Json::String(s), ..) | (_, Some("text"), Some(Json::String(s))) => out.push_str(s),
                    _ => return Err("a list with parts that aren't text"),
                }
            }
            Ok(Some(out))
        }
        other => Err(kind(other)),
    }
}

/// Brings the arguments of each call to an object: the same text is rendered for both forms (DA-16).
fn tool_calls(calls: &mut Json, index: usize) -> Result<(), Reason> {
    let Json::Array(calls) = calls else {
        return Err(format!("`tool_calls` is {}, not a list (message {index})", kind(calls)));
    };
    for call in calls {
        let place = if call.get("function").is_some_and(Json::is_object) { &mut call["function"] } else { call };
        let Json::Object(function) = place else {
            return Err(format!("a tool call isn't an object (message {index})"));
        };
        match function.get("arguments") {
            Some(Json::String(text)) if text.trim().is_empty() => {
                function.insert("arguments".into(), Json::Object(Map::new()));
            }
            Some(Json::String(text)) => {
                let parsed: Json = serde_json::from_str(text)
                    .map_err(|_| format!("tool call arguments aren't JSON (message {index})"))?;
                function.insert("arguments".into(), parsed);
            }
            _ => {}
        }
    }
    Ok(())
}

/// The row's `tools`: a list, or its JSON text.
fn tools(row: &Map<String, Json>) -> Result<Option<Vec<Json>>, Reason> {
    let list = match row.get("tools") {
        None | Some(Json::Null) => return Ok(None),
        Some(Json::String(text)) if text.trim().is_empty() => return Ok(None),
        Some(Json::String(text)) => serde_json::from_str(text).map_err(|_| "`tools` isn't JSON".to_string())?,
        Some(other) => other.clone(),
    };
    match list {
        Json::Array(items) if items.is_empty() => Ok(None),
        Json::Array(items) => items.into_iter().map(tool).collect::<Result<_, _>>().map(Some),
        other => Err(format!("`tools` is {}, not a list", kind(&other))),
    }
}

/// One tool as transformers hands it to a template: JSON text is read, a bare schema is wrapped as a function.
fn tool(item: Json) -> Result<Json, Reason> {
    let item = match item {
        Json::String(text) => serde_json::from_str(&text).map_err(|_| "a tool of `tools` isn't JSON".to_string())?,
        other => other,
    };
    match &item {
        Json::Object(map) if map.contains_key("name") && !map.contains_key("function") && !map.contains_key("type") => {
            Ok(serde_json::json!({"type": "function", "function": item}))
        }
        Json::Object(_) => Ok(item),
        other => Err(format!("a tool of `tools` is {}, not an object", kind(other))),
    }
}

/// What a JSON value is, for a reason.
#[must_use]
pub fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}
