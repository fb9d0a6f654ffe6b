//! The exact command that runs a plan: every key that differs from its default, quoted for a shell.

use crate::config::{Mode, RunConfig};
use crate::error::Result;
use toml::Value;

/// `blockstream-tui train --set model.path=… --set …` for `config` in `mode`.
pub fn command(config: &RunConfig, model: &str, mode: Mode) -> String {
    let mut config = config.clone();
    config.train.mode = mode;
    config.machine = None;
    if config.model.path.is_empty() {
        config.model.path = model.into();
    }
    let (Ok(Value::Table(now)), Ok(Value::Table(then))) =
        (Value::try_from(&config), Value::try_from(RunConfig::default()))
    else {
        return String::new();
    };
    let mut words = vec!["blockstream-tui train".to_string()];
    for (section, value) in &now {
        match (value, then.get(section)) {
            (Value::Table(keys), Some(Value::Table(defaults))) => {
                let changed = keys.iter().filter(|(k, v)| defaults.get(*k) != Some(*v));
                words.extend(changed.map(|(k, v)| format!("--set {}", quote(&format!("{section}.{k}={}", text(v))))));
            }
            (v, old) if old != Some(v) => words.push(format!("--set {}", quote(&format!("{section}={}", text(v))))),
            _ => {}
        }
    }
    words.join(" ")
}

fn text(v: &Value) -> String {
    match v {
        Value::String(s) => s.clone(),
        Value::Array(a) => a.iter().map(text).collect::<Vec<_>>().join(","),
        v => v.to_string(),
    }
}

/// The settings that a command that the planner prints makes.
///
/// # Errors
/// It is no such command, or a setting in it is refused.
pub fn read(line: &str) -> Result<RunConfig> {
    let words = words(line);
    let sets: Vec<String> = words.windows(2).filter(|pair| pair[0] == "--set").map(|pair| pair[1].clone()).collect();
    Ok(crate::config::load::load(None, &[], &sets)?.config)
}

/// The words of a line that [`quote`] wrote.
fn words(line: &str) -> Vec<String> {
    let (mut out, mut word, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => quoted = !quoted,
            '\\' if !quoted => word.extend(chars.next()),
            ' ' if !quoted => out.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    out.push(word);
    out
}

/// Quotes a word for a POSIX shell where it needs it.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:@%+".contains(c);
    let shown = crate::text::one_line(word);
    if shown.chars().all(plain) { shown.into_owned() } else { format!("'{}'", shown.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::load::load;

    #[test]
    fn the_command_sets_what_differs_and_reads_back() {
        let mut c = RunConfig::default();
        c.data.files = vec!["my data.jsonl".into(), "b.jsonl".into()];
        c.lora.r = 8;
        c.stream.host_budget = crate::config::ByteSize(64_000_000);
        let line = command(&c, "it's/here", Mode::Lora);
        assert_eq!(
            line,
            "blockstream-tui train --set 'data.files=my data.jsonl,b.jsonl' --set lora.r=8 \
             --set 'model.path=it'\\''s/here' --set stream.host_budget=64000000"
        );
        let sets =
            ["data.files=my data.jsonl,b.jsonl", "lora.r=8", "model.path=it's/here", "stream.host_budget=64000000"];
        let back = load(None, &[], &sets.map(String::from)).unwrap().config;
        assert_eq!((&back.data.files, back.lora.r, back.stream.host_budget), (&c.data.files, 8, c.stream.host_budget));
        let read = read(&line).unwrap();
        assert_eq!((read.data.files, read.model.path), (c.data.files, "it's/here".to_owned()), "as a shell would");
        assert!(command(&RunConfig::default(), "m", Mode::Full).ends_with("--set model.path=m --set train.mode=full"));
    }
}
