//! How `generate` draws its tokens: what the command line says, else the model's `generation_config.json`, else ours.

use super::args::GenerateArgs;
use super::ranges::{mass, penalty, temperature, within};
use crate::checkpoint::{files, keys};
use crate::error::{Error, Result};
use crate::infer::Choice;
use crate::text::clean;
use serde_json::{Map, Value};
use std::path::Path;

/// The file in which a model's makers say how to draw.
const FILE: &str = "generation_config.json";
/// What draws where neither the command line nor the model says: temperature and nucleus mass.
const OURS: (f64, f64) = (0.7, 0.9);
/// Keys of the file whose value that changes nothing isn't an empty one.
const NEUTRAL: [(&str, f64); 5] = [
    ("encoder_repetition_penalty", 1.0),
    ("guidance_scale", 1.0),
    ("num_beams", 1.0),
    ("num_return_sequences", 1.0),
    ("typical_p", 1.0),
];

/// Settled sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// How the next token is chosen.
    pub choice: Choice,
    /// Divides the logits of tokens that stand in the text.
    pub penalty: f64,
    /// Texts before which the answer ends.
    pub stops: Vec<String>,
    /// Lines for the user: what is used and whose it is, what of the file isn't used.
    pub said: Vec<String>,
}

/// The `generation_config.json` of the model folder `dir`; empty where there is none. A broken one is told by `said`.
#[must_use]
pub fn of_model(dir: &Path, said: &mut Vec<String>) -> Map<String, Value> {
    let path = dir.join(FILE);
    if path.symlink_metadata().is_err() {
        return Map::new();
    }
    files::read_json(&path).unwrap_or_else(|e| {
        said.push(format!("ignored: {}", e.what()));
        Map::new()
    })
}

/// What `args` and the model's `file` add up to.
///
/// # Errors
/// A value of the file that can't be used and that no flag replaces, or a key that asks for what isn't here.
pub fn settle(args: &GenerateArgs, file: &Map<String, Value>) -> Result<Sampling> {
    let mut taken = Vec::new();
    let mut number = |key: &str, flag: Option<f64>, parse: fn(&str) -> Result<f64, String>| -> Result<Option<f64>> {
        match file.get(key) {
            Some(value) if flag.is_none() && !value.is_null() => {
                let read = parse(&value.to_string()).map_err(|want| unusable(key, value, &want))?;
                taken.push(key.replace('_', " "));
                Ok(Some(read))
            }
            _ => Ok(flag),
        }
    };
    let drawn = [args.temperature.is_some(), args.top_k.is_some(), args.top_p.is_some()].contains(&true);
    let greedy = args.greedy || (!drawn && file.get("do_sample") == Some(&Value::Bool(false)));
    let penalty = number("repetition_penalty", args.repetition_penalty, penalty)?.unwrap_or(1.0);
    let (choice, mut line) = if greedy {
        (Choice::Greedy, "greedy".to_string())
    } else {
        let temperature = number("temperature", args.temperature, temperature)?.unwrap_or(OURS.0);
        let top_k = number("top_k", args.top_k.map(|k| k as f64), count)?.unwrap_or(0.0) as usize;
        let top_p = number("top_p", args.top_p, mass)?.unwrap_or(OURS.1);
        let of = if top_k > 0 { format!(", top-k {top_k}") } else { String::new() };
        let line = format!("temperature {temperature}{of}, top-p {top_p}, seed {}", args.seed);
        let choice = match temperature {
            0.0 => Choice::Greedy,
            _ => Choice::Sample { temperature, top_k, top_p, seed: args.seed },
        };
        (choice, line)
    };
    if penalty != 1.0 {
        line += &format!(", repetition penalty {penalty}");
    }
    if greedy && !args.greedy {
        taken.push("do_sample false".into());
    }
    if !taken.is_empty() {
        line += &format!(" ({FILE}: {})", taken.join(", "));
    }
    let mut said = vec![format!("sampling: {line}")];
    let neutral = |key: &str, value: &Value| NEUTRAL.iter().any(|(k, n)| *k == key && value.as_f64() == Some(*n));
    let meant = file.iter().filter(|(k, v)| !neutral(k, v)).map(|(k, v)| (k.clone(), v.clone())).collect();
    said.extend(keys::check(FILE, keys::GENERATION, &meant)?);
    let mut stops: Vec<String> = args.stop.clone();
    match file.get("stop_strings") {
        Some(Value::String(one)) => stops.push(one.clone()),
        Some(Value::Array(list)) => stops.extend(list.iter().filter_map(Value::as_str).map(String::from)),
        _ => {}
    }
    stops.retain(|s| !s.is_empty());
    Ok(Sampling { choice, penalty, stops, said })
}

fn count(text: &str) -> Result<f64, String> {
    within(text, |x| x >= 0.0 && x.fract() == 0.0, "a whole number from 0 on")
}

fn unusable(key: &str, value: &Value, want: &str) -> Error {
    let flag = key.replace('_', "-");
    Error::checkpoint(format!("{FILE}: {key} is {}, but {want}", clean(&value.to_string())))
        .next(format!("give --{flag}, or --greedy"))
}

#[cfg(test)]
mod tests {
    use super::super::args::{Cli, Command};
    use super::*;
    use crate::checkpoint::keys::Fate;
    use clap::Parser;
    use serde_json::json;

    fn args(more: &[&str]) -> Result<GenerateArgs, clap::Error> {
        let all = ["x", "generate", "--model", "M", "--prompt", "p"].iter().chain(more);
        match Cli::try_parse_from(all)?.command {
            Some(Command::Generate(args)) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    fn settled(more: &[&str], file: Value) -> Result<Sampling> {
        settle(&args(more).unwrap(), file.as_object().unwrap())
    }

    #[test]
    fn case_fo_41_a_value_that_cant_be_is_a_usage_error() {
        for (flag, bad) in [
            ("--temperature", &["NaN", "-1", "inf", "-inf", "x", ""][..]),
            ("--top-p", &["2", "-0.5", "NaN", "inf"]),
            ("--repetition-penalty", &["0", "-1", "NaN", "inf"]),
            ("--top-k", &["-1", "0.5", "NaN"]),
            ("--max-new-tokens", &["-1", "x"]),
        ] {
            for value in bad {
                let e = args(&[&format!("{flag}={value}")]).expect_err(&format!("{flag} {value}"));
                assert!(e.use_stderr() && e.to_string().contains(flag), "{e}");
            }
        }
        for good in ["--temperature=0", "--temperature=1.5", "--top-p=0", "--top-p=1", "--repetition-penalty=1.1"] {
            args(&[good]).unwrap();
        }
    }

    #[test]
    fn case_fo_42_flags_win_over_the_models_own_and_both_are_said() {
        let sample = |temperature, top_k, top_p| Choice::Sample { temperature, top_k, top_p, seed: 42 };
        let ours = settled(&[], json!({})).unwrap();
        assert_eq!((ours.choice, ours.penalty), (sample(0.7, 0, 0.9), 1.0));
        assert_eq!(ours.said, ["sampling: temperature 0.7, top-p 0.9, seed 42"]);
        let file = json!({ "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95,
            "repetition_penalty": 1.05, "num_beams": 4, "min_p": 0.0, "stop_strings": ["END"] });
        let model = settled(&[], file.clone()).unwrap();
        assert_eq!((model.choice, model.penalty), (sample(0.6, 20, 0.95), 1.05));
        assert_eq!(model.stops, ["END"]);
        assert_eq!(
            model.said[0],
            "sampling: temperature 0.6, top-k 20, top-p 0.95, seed 42, repetition penalty 1.05 \
            (generation_config.json: repetition penalty, temperature, top k, top p)"
        );
        assert_eq!(model.said[1], "generation_config.json has keys that aren't used here: 'num_beams'");
        let flags = ["--temperature=1", "--top-k=3", "--repetition-penalty=1", "--stop", "a", "--stop", ""];
        let both = settled(&flags, file.clone()).unwrap();
        assert_eq!((both.choice, both.penalty), (sample(1.0, 3, 0.95), 1.0));
        assert_eq!(both.stops, ["a", "END"]);
        let greedy = settled(&["--greedy"], file).unwrap();
        assert_eq!((greedy.choice, greedy.penalty), (Choice::Greedy, 1.05));
        assert_eq!(settled(&[], json!({"do_sample": false})).unwrap().choice, Choice::Greedy);
        assert_eq!(settled(&["--top-p=0.5"], json!({"do_sample": false})).unwrap().choice, sample(0.7, 0, 0.5));
        assert_eq!(settled(&["--temperature=0"], json!({})).unwrap().choice, Choice::Greedy);
    }

    #[test]
    fn case_fo_42b_every_known_key_is_used_refused_by_name_or_told_once() {
        let text = include_str!("../../tests/data/generation_config.json");
        let file: Map<String, Value> = serde_json::from_str(text).unwrap();
        let known: Vec<&str> = keys::GENERATION.iter().map(|(key, _)| *key).collect();
        assert_eq!(file.keys().map(String::as_str).collect::<Vec<_>>(), known, "the fixture holds every known key");
        let of = |fate: Fate| keys::GENERATION.iter().filter(move |(_, f)| *f == fate).map(|(key, _)| *key);
        let mut taken = file.clone();
        for key in of(Fate::Refused) {
            let one = Map::from_iter([(key.to_string(), taken.remove(key).unwrap())]);
            let e = settle(&args(&["--greedy"]).unwrap(), &one).unwrap_err();
            assert!(e.exit_code() as u8 == 2 && e.what().contains(&format!("'{key}'")), "{e}");
        }
        let settled = settle(&args(&[]).unwrap(), &taken).unwrap();
        let [drawn, told] = settled.said.as_slice() else { panic!("{:?}", settled.said) };
        assert!(told.ends_with(&format!("and {} more", of(Fate::Told).count() - 5)), "{told}");
        for key in file.keys().filter(|key| of(Fate::Told).any(|told| told == key.as_str())) {
            let one = Map::from_iter([(key.clone(), file[key].clone())]);
            let said = settle(&args(&[]).unwrap(), &one).unwrap().said;
            assert!(said.len() == 2 && said[1].ends_with(&format!(": '{key}'")), "{said:?}");
        }
        // What is used bears on the answer: `eos_token_id` where the model is opened.
        for word in ["repetition penalty 1.05", "temperature 0.6", "top-k 20", "top-p 0.95"] {
            assert!(drawn.contains(word), "{drawn}");
        }
        assert_eq!(settled.stops, ["END"]);
        let neutral =
            json!({"num_beams": 1, "typical_p": 1.0, "guidance_scale": 1, "num_return_sequences": 1, "min_p": 0.0});
        assert_eq!(self::settled(&[], neutral).unwrap().said.len(), 1);
    }

    #[test]
    fn case_fo_42_a_value_of_the_file_that_cant_be_is_named() {
        for bad in [json!({"temperature": -1}), json!({"top_p": 2}), json!({"top_k": 1.5}), json!({"top_p": "x"})] {
            let e = settled(&[], bad.clone()).unwrap_err();
            assert_eq!(e.exit_code() as u8, 2);
            assert!(e.what().contains(bad.as_object().unwrap().keys().next().unwrap()), "{e}");
            settled(&["--greedy"], bad).unwrap();
        }
    }
}
