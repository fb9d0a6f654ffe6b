//! The chat templates of a model's folder, found where transformers finds them.

use super::super::template::clean;
use super::files;
use crate::checkpoint::keys;
use crate::error::{Error, Result};
use serde_json::{Map, Value as Json};
use std::path::Path;

/// Folder of the templates beside the default one.
const MORE: &str = "additional_chat_templates";
/// Most templates that are looked at in it.
const MAX_MORE: usize = 64;

/// A chat template as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateSource {
    /// `default`, or the name in a list of templates, such as `tool_use`.
    pub name: String,
    /// Jinja source.
    pub source: String,
    /// File it came from.
    pub origin: String,
}

/// The folder's templates, the default one first: `chat_template.jinja`, else `chat_template` of
/// `tokenizer_config.json` (text, or a list of name and template), else of `chat_template.json`; those of
/// `additional_chat_templates/` come before others of their names.
///
/// transformers takes the default only from `chat_template.jinja` once that folder is there, and then refuses
/// conversations without tools; here the config's default stays.
///
/// # Errors
/// A file that can't be read, a template that isn't text, or several and none of them the default.
pub fn find(dir: &Path, config: &Map<String, Json>, notes: &mut Vec<String>) -> Result<Vec<TemplateSource>> {
    let mut found = main(dir, config, notes)?;
    for (name, path) in more(dir)? {
        found.retain(|t| t.name != name);
        let source = files::template(&path, notes)?;
        found.push(TemplateSource { origin: format!("{MORE}/{}.jinja", clean(&name)), name, source });
    }
    found.sort_by_key(|t| t.name != "default");
    if found.len() > 1 && found[0].name != "default" {
        let names: Vec<_> = found.iter().map(|t| clean(&t.name)).collect();
        return Err(Error::data(format!(
            "the model has the chat templates {} and none is 'default'",
            names.join(", ")
        ))
        .next("copy the one you mean into a file and name it in data.template"));
    }
    let idle: Vec<_> =
        found.iter().skip(1).filter(|t| t.name != "tool_use").map(|t| format!("'{}'", clean(&t.name))).collect();
    if !idle.is_empty() {
        notes.push(format!(
            "chat templates that no row asks for: {} (default is used, and tool_use for rows with tools)",
            idle.join(", ")
        ));
    }
    Ok(found)
}

fn main(dir: &Path, config: &Map<String, Json>, notes: &mut Vec<String>) -> Result<Vec<TemplateSource>> {
    let one = |source: &str, origin: &str| {
        vec![TemplateSource { name: "default".into(), source: source.into(), origin: origin.into() }]
    };
    let jinja = dir.join("chat_template.jinja");
    if jinja.symlink_metadata().is_ok() {
        return Ok(one(&files::template(&jinja, notes)?, "chat_template.jinja"));
    }
    const JSON: &str = "chat_template.json";
    let json = files::object(&dir.join(JSON), notes)?;
    notes.extend(keys::check(JSON, keys::CHAT_TEMPLATE, &json)?);
    for (value, origin) in [(config.get("chat_template"), "tokenizer_config.json"), (json.get("chat_template"), JSON)] {
        match value {
            None | Some(Json::Null) => {}
            Some(Json::String(source)) => return Ok(one(source, origin)),
            Some(Json::Array(list)) => return list.iter().map(|t| named(t, origin)).collect(),
            Some(_) => return Err(wrong(origin)),
        }
    }
    Ok(Vec::new())
}

fn named(entry: &Json, origin: &str) -> Result<TemplateSource> {
    let text = |key: &str| entry.get(key).and_then(Json::as_str);
    let (Some(name), Some(source)) = (text("name"), text("template")) else { return Err(wrong(origin)) };
    Ok(TemplateSource { name: name.into(), source: source.into(), origin: format!("{origin}, '{name}'") })
}

fn wrong(origin: &str) -> Error {
    Error::data(format!("`chat_template` of {origin} is neither text nor a list of names and templates"))
        .next("fetch the file again, or name a template file in data.template")
}

/// Name and path of each template in [`MORE`], by name.
fn more(dir: &Path) -> Result<Vec<(String, std::path::PathBuf)>> {
    let dir = dir.join(MORE);
    if !dir.is_dir() {
        return Ok(Vec::new());
    }
    let entries = std::fs::read_dir(&dir).map_err(|e| Error::io("read", &dir, e))?;
    let mut out: Vec<_> = entries
        .flatten()
        .filter_map(|e| Some((e.file_name().to_str()?.strip_suffix(".jinja")?.to_string(), e.path())))
        .take(MAX_MORE + 1)
        .collect();
    if out.len() > MAX_MORE {
        return Err(Error::data(format!("'{}' holds more than {MAX_MORE} templates", dir.display()))
            .next("keep the ones that the model uses"));
    }
    out.sort();
    Ok(out)
}
