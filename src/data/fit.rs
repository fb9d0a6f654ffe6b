//! How a template reads what it is given (contents as text or as parts, arguments, system turns), found on made-up turns,
//! and what of a conversation it leaves out.

use super::chat::Refused;
use super::mask;
use super::messages::{Conversation, Turn};
use super::template::{ChatTemplate, Context, Refusal, clean, dumps};
use crate::config::SystemFallback;
use crate::error::{Error, Result};
use serde_json::{Value as Json, json};

/// `messages` as the template shows them.
pub(super) fn render(template: &ChatTemplate, messages: &[Json]) -> Result<String, Refusal> {
    template.render(Context { messages, tools: None, add_generation_prompt: false, kwargs: None })
}

/// A user's turn and an answer, which a template is tried on.
pub(super) fn made_up() -> (Json, Json) {
    (json!({"role": "user", "content": "qqq"}), json!({"role": "assistant", "content": "aaa"}))
}

/// Roles whose contents are given as lists of parts, in the order in which they are tried.
const FORMS: [&[&str]; 4] = [
    &[],
    &["system", "developer", "user", "assistant", "tool"],
    &["system", "developer", "user", "tool"],
    &["assistant"],
];

/// Finds how `template` reads contents, as text or as lists of parts, and sets it so. False if it refuses the turns that
/// it is tried on.
///
/// # Errors
/// It can't render them, or shows nothing of what a user says: every row would be trained without its question.
pub(super) fn fit(template: &mut ChatTemplate, notes: &mut Vec<String>) -> Result<bool> {
    let (user, assistant) = made_up();
    let turns = [user, assistant];
    let mut tried = Vec::with_capacity(FORMS.len());
    for form in FORMS {
        template.give_parts(form);
        tried.push(render(template, &turns));
        if form.is_empty() && matches!(tried[0], Err(Refusal::Raised(_))) {
            return Ok(false);
        }
    }
    let shows = |wanted: &[&str]| {
        tried.iter().position(|t| t.as_ref().is_ok_and(|text| wanted.iter().all(|w| text.contains(w))))
    };
    // One that hides the answer can still ask for one; the mask refuses to train with it.
    let Some(at) = shows(&["qqq", "aaa"]).or_else(|| shows(&["qqq"])) else {
        let what = match &tried[0] {
            Err(why) => format!("can't render a user and an assistant turn: {}", why.reason()),
            Ok(_) => "shows nothing of what a user says, neither as text nor as a list of parts".into(),
        };
        return Err(Error::data(format!("chat template ({}) {what}", clean(template.origin())))
            .next("name another template file in data.template"));
    };
    template.give_parts(FORMS[at]);
    if at > 0 {
        let roles: Vec<&str> = FORMS[at].iter().copied().filter(|r| *r != "developer").collect();
        notes.push(format!(
            "chat template ({}) reads contents as lists of parts: texts of {} turns are given so",
            clean(template.origin()),
            roles.join(", ")
        ));
    }
    Ok(true)
}

/// Whether `text` is what the template says of `conversation` without its tools.
pub(super) fn shows_no_tools(template: &ChatTemplate, conversation: &Conversation, text: &str) -> bool {
    let messages: Vec<Json> = conversation.turns.iter().map(|t| t.message.clone()).collect();
    let kwargs = conversation.kwargs.as_ref();
    let context = Context { messages: &messages, tools: None, add_generation_prompt: false, kwargs };
    template.render(context).is_ok_and(|without| without == text)
}

/// Whether any part of what users say is in `text`; `None` if they say nothing.
pub(super) fn shows_a_user(conversation: &Conversation, text: &str) -> Option<bool> {
    let said = conversation.turns.iter().filter(|t| t.role() == "user");
    let said = said.filter_map(|t| Some((t, t.content()?.trim().chars().count()))).filter(|(_, n)| *n > 0);
    said.map(|(turn, all)| mask::lost(turn, text) < all).reduce(|a, b| a || b)
}

/// Characters of a user's or a tool's turn that aren't in `text`. JSON that tools return may be written anew.
pub(super) fn hidden(turn: &Turn, text: &str) -> usize {
    let content = turn.content().unwrap_or_default();
    match turn.role() {
        "user" => mask::lost(turn, text),
        "tool" if serde_json::from_str::<serde::de::IgnoredAny>(content).is_err() => mask::lost(turn, text),
        _ => 0,
    }
}

/// Takes system turns out of `turns`, as `fallback` says; how many there were.
pub(super) fn without_system(turns: &mut Vec<Turn>, fallback: SystemFallback) -> Result<usize, Refused> {
    let is_system = |t: &Turn| matches!(t.role(), "system" | "developer");
    let found = turns.iter().filter(|t| is_system(t)).count();
    if found == 0 {
        return Ok(0);
    }
    let mut waiting = String::new();
    match fallback {
        SystemFallback::Stop => return Err(Refused::System),
        SystemFallback::Drop => {}
        SystemFallback::Fold => {
            for turn in turns.iter_mut() {
                let content = turn.content().unwrap_or_default();
                if is_system(turn) {
                    waiting = format!("{waiting}{content}\n\n");
                } else if turn.role() == "user" && !waiting.is_empty() {
                    turn.message["content"] = format!("{}{content}", std::mem::take(&mut waiting)).into();
                }
            }
        }
    }
    if !waiting.is_empty() {
        return Err(Refused::Row("a system turn has no user turn to be folded into".into()));
    }
    turns.retain(|t| !is_system(t));
    Ok(found)
}

/// Arguments of tool calls as JSON text, for templates that print them as they are.
pub(super) fn write_arguments(message: &mut Json) {
    let write = |holder: &mut Json| {
        if let Some(arguments) = holder.get_mut("arguments").filter(|a| !a.is_string()) {
            *arguments = dumps(arguments).into();
        }
    };
    for call in message.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten() {
        write(call);
        call.get_mut("function").into_iter().for_each(write);
    }
}
