//! Whole imports: counts, reasons, cuts and splits, as the report will hold them.

use super::testing::{CHATML, Fixture, IM_END, chat_row};
use super::{Dataset, Row};
use crate::config::{DataFormat, OverLong, RunConfig, SystemFallback};
use crate::error::{ExitCode, Result};
use serde_json::{Value as Json, json};

fn run(rows: &[Json], edit: impl FnOnce(&mut RunConfig)) -> Result<Dataset> {
    Fixture::default().build().prepare(rows, edit)
}

fn refused(rows: &[Json], edit: impl FnOnce(&mut RunConfig)) -> String {
    let error = run(rows, edit).unwrap_err();
    assert_eq!(error.exit_code(), ExitCode::Usage);
    error.to_string()
}

fn noted(data: &Dataset, text: &str) -> bool {
    data.notes.iter().any(|n| n.contains(text))
}

fn ab() -> Json {
    chat_row(&[("user", "a"), ("assistant", "b")])
}

/// A row with a prompt of `p` characters and an answer of `n`.
fn sized(p: usize, n: usize) -> Json {
    json!({"prompt": "p".repeat(p), "completion": "c".repeat(n)})
}

#[test]
fn case_da_06_the_format_is_shown_and_can_be_overridden() {
    let data = run(&[ab(), ab()], |_| {}).unwrap();
    assert_eq!((data.facts.format.as_str(), data.facts.rows_used), ("messages", 2));
    assert!(noted(&data, "rows.jsonl: messages, 2 rows"), "{:?}", data.notes);
    let both = json!({"text": "t", "instruction": "i", "output": "o"});
    assert_eq!(run(std::slice::from_ref(&both), |_| {}).unwrap().facts.format, "alpaca");
    assert_eq!(run(&[both], |c| c.data.format = DataFormat::Text).unwrap().train[0].ids, [b't'.into(), IM_END]);
    // The first row names the file's format; others are counted, not guessed.
    let data = run(&[ab(), json!({"text": "x"})], |_| {}).unwrap();
    assert_eq!(data.facts.dropped["the row isn't in the file's format (messages)"], 1);
    let unknown = chat_row(&[("narrator", "a"), ("assistant", "b")]);
    let data = run(&[ab(), unknown.clone(), unknown], |_| {}).unwrap();
    assert_eq!(data.facts.dropped["unknown role 'narrator'"], 2);
    assert!(noted(&data, "left out 2 rows: unknown role 'narrator' (first at rows.jsonl:2)"));
    assert!(refused(&[json!({"question": "a", "answer": "b"})], |_| {}).contains("`question`, `answer`"));
}

#[test]
fn case_da_07_one_summary_by_reason_with_first_lines() {
    let rows = [
        json!({"instruction": "x", "output": {"a": 1}}),
        json!({"instruction": "x", "output": 5}),
        json!({"instruction": "x", "output": ""}),
        json!({"instruction": "x", "output": {"b": 1}}),
    ];
    let message = refused(&rows, |_| {});
    for part in [
        "no usable row in",
        "2 × `output` is an object, not text (first at rows.jsonl:1)",
        "1 × `output` is a number, not text (first at rows.jsonl:2)",
        "1 × `output` is empty (first at rows.jsonl:3)",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let rows = [json!({"messages": []}), json!({"messages": null}), chat_row(&[("user", "a")]), ab()];
    let data = run(&rows, |_| {}).unwrap();
    assert_eq!(data.facts.rows_used, 1);
    let dropped: Vec<_> = data.facts.dropped.iter().map(|(k, v)| (k.as_str(), *v)).collect();
    assert_eq!(dropped, [("`messages` is empty", 1), ("`messages` is null, not a list", 1), ("no assistant turn", 1)]);
    assert!(refused(&[], |_| {}).contains("it holds no rows"));
}

#[test]
fn many_different_reasons_are_counted_together() {
    let rows: Vec<_> = (0..200).map(|i| chat_row(&[(&format!("r{i}"), "a")])).chain([ab()]).collect();
    let data = run(&rows, |_| {}).unwrap();
    assert!(data.facts.dropped.len() <= 41);
    assert_eq!(data.facts.dropped.values().sum::<u64>(), 200);
}

const NO_SYSTEM: &str =
    "{% if messages[0]['role']=='system' %}{{ raise_exception('System role not supported') }}{% endif %}";

#[test]
fn case_da_08_a_template_without_a_system_role() {
    let rows = [
        ab(),
        chat_row(&[("system", "s"), ("user", "a"), ("assistant", "b")]),
        chat_row(&[("system", "s"), ("user", "a"), ("assistant", "b")]),
    ];
    let silent = "{% for m in messages if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    for template in [format!("{NO_SYSTEM}{CHATML}"), silent.to_string()] {
        let model = || Fixture::template(&template).build();
        let error = model().prepare(&rows, |_| {}).unwrap_err().to_string();
        assert!(
            error.contains("2 rows have one (first at rows.jsonl:2)") && error.contains("system_fallback"),
            "{error}"
        );
        let folded = model().prepare(&rows, |c| c.data.system_fallback = SystemFallback::Fold).unwrap();
        assert_eq!(folded.facts.rows_used, 3);
        assert!(noted(&folded, "takes no system turn: 2 folded into the next user turn (first at rows.jsonl:2)"));
        let text = text_of(&folded.train[1]);
        assert!(text.contains("<|im_start|>user\ns\n\na<|im_end|>"), "{text}");
        let dropped = model().prepare(&rows, |c| c.data.system_fallback = SystemFallback::Drop).unwrap();
        assert_eq!(dropped.train[1], dropped.train[0]);
        assert!(noted(&dropped, "2 dropped"));
    }
    // Where the template has the role, the choice changes nothing.
    let plain = run(&rows, |c| c.data.system_fallback = SystemFallback::Drop).unwrap();
    assert!(text_of(&plain.train[1]).contains("system\ns"));
}

fn text_of(row: &Row) -> String {
    Fixture::default().build().chat().tokenizer().decode(&row.ids, false).unwrap()
}

#[test]
fn case_da_12_rows_without_a_trained_token() {
    let bad = sized(100, 5);
    let message = refused(&vec![bad.clone(); 3], |c| c.data.max_length = 64);
    assert!(message.contains("3 × nothing left to train after the cut to max_length"), "{message}");
    assert!(message.contains("raise data.max_length"), "{message}");
    let mut rows = vec![sized(10, 5); 9];
    rows.insert(4, bad);
    let data = run(&rows, |c| c.data.max_length = 64).unwrap();
    assert_eq!(data.facts.rows_used, 9);
    assert_eq!(data.facts.dropped["nothing left to train after the cut to max_length"], 1);
    assert!(data.train.iter().all(|r| r.trained_tokens() == 6));
}

#[test]
fn case_da_15_the_data_set_says_how_much_thinking_vanishes() {
    let template = CHATML.replace("m['content']", "m['content'].split('</think>')[-1]");
    let rows = [chat_row(&[("user", "q"), ("assistant", "<think>12345</think>b")]), ab()];
    let data = Fixture::template(&template).build().prepare(&rows, |_| {}).unwrap();
    let n = "<think>12345</think>".len();
    assert!(
        noted(&data, &format!("leaves out {n} characters of assistant text in 1 row (first at rows.jsonl:1)")),
        "{:?}",
        data.notes
    );
}

#[test]
fn case_da_19_what_happens_to_long_rows_is_counted() {
    let mut rows = vec![sized(10, 5); 7]; // 16 tokens each
    rows.extend([sized(10, 60), sized(10, 70), sized(80, 20)]); // 71, 81, 101
    let with = |how: OverLong| {
        run(&rows, |c| {
            c.data.max_length = 64;
            c.data.over_long = how;
        })
    };
    let end = with(OverLong::TruncateEnd).unwrap();
    assert_eq!((end.facts.rows_used, end.facts.truncated), (9, 3));
    assert_eq!(end.facts.dropped["nothing left to train after the cut to max_length"], 1);
    assert!(
        noted(&end, "truncate_end: cut 3 rows to 64 tokens, 61 tokens lost (first at rows.jsonl:8)"),
        "{:?}",
        end.notes
    );
    assert!(end.train.iter().all(|r| r.ids.len() <= 64));

    let start = with(OverLong::TruncateStart).unwrap();
    assert_eq!((start.facts.rows_used, start.facts.truncated), (10, 3));
    assert!(start.train.iter().all(|r| r.ids.len() <= 64 && r.ids.last() == Some(&IM_END)));
    assert_eq!(start.train[9].trained_tokens(), 21);

    let drop = with(OverLong::Drop).unwrap();
    assert_eq!((drop.facts.rows_used, drop.facts.truncated), (7, 0));
    assert_eq!(drop.facts.dropped["longer than max_length"], 3);

    let message = with(OverLong::Error).unwrap_err().to_string();
    assert!(
        message.contains("3 rows are longer than max_length 64 (first at rows.jsonl:8; the longest has 101 tokens)"),
        "{message}"
    );
}

#[test]
fn truncate_start_keeps_bos() {
    let model = Fixture { bos_post: true, ..Fixture::default() }.build();
    let data = model
        .prepare(&[sized(20, 5)], |c| {
            c.data.max_length = 8;
            c.data.over_long = OverLong::TruncateStart;
        })
        .unwrap();
    assert_eq!(data.train[0].ids, [257, 112, 99, 99, 99, 99, 99, IM_END]);
    assert_eq!(data.train[0].trained, [false, false, true, true, true, true, true, true]);
}

#[test]
fn case_da_21_the_date_is_frozen_and_recorded() {
    let template = format!("{{{{ strftime_now('%d %b %Y') }}}}{CHATML}");
    let data = Fixture::template(&template).build().prepare(&[ab()], |_| {}).unwrap();
    assert_eq!(data.facts.template_date, "2024-07-06");
    assert!(text_of(&data.train[0]).starts_with("06 Jul 2024"));
}

#[test]
fn case_ex_15_the_report_gets_its_data_counts() {
    let rows = [ab(), json!({"messages": []}), chat_row(&[("user", "a"), ("assistant", &"b".repeat(100))])];
    let data = run(&rows, |c| c.data.max_length = 64).unwrap();
    let f = &data.facts;
    assert_eq!((f.rows_used, f.rows_eval, f.truncated, f.dropped.values().sum::<u64>()), (2, 0, 1, 1));
    assert_eq!(f.tokens, data.train.iter().map(|r| r.ids.len() as u64).sum::<u64>());
    assert_eq!(f.trained_tokens, 2 + (64 - 20));
    assert_eq!(f.sha256.len(), 64);
    let json = serde_json::to_string(&data.facts).unwrap() + &data.notes.join("\n");
    assert!(!json.contains(std::env::temp_dir().to_str().unwrap()), "no folder of this machine in the report: {json}");
}

#[test]
fn a_split_is_disjoint_seeded_and_stated() {
    let rows: Vec<_> = (0..20).map(|i| chat_row(&[("user", "a"), ("assistant", &format!("b{i}"))])).collect();
    let with = |seed| {
        run(&rows, |c| {
            c.data.eval_split = 0.2;
            c.train.seed = seed;
        })
        .unwrap()
    };
    let data = with(42);
    assert_eq!((data.train.len(), data.eval.len(), data.facts.rows_used, data.facts.rows_eval), (16, 4, 16, 4));
    assert!(data.eval.iter().all(|r| !data.train.contains(r)));
    assert!(noted(&data, "4 of 20 rows are kept for evaluation and not trained (eval_split 0.2, seed 42)"));
    assert_eq!(with(42).eval, data.eval);
    assert_ne!(with(43).eval, data.eval);
    let twins = run(&vec![ab(); 4], |c| c.data.eval_split = 0.25).unwrap();
    assert!(noted(&twins, "1 row for evaluation with a twin among the training rows"));
}

#[test]
fn eval_files_win_over_the_split() {
    let model = Fixture::default().build();
    let held = model.data("held.jsonl", &[chat_row(&[("user", "z"), ("assistant", "y")])]);
    let data = model
        .prepare(&[ab(), ab()], |c| {
            c.data.eval_files = vec![held];
            c.data.eval_split = 0.5;
        })
        .unwrap();
    assert_eq!((data.train.len(), data.eval.len()), (2, 1));
    let empty = model.data("empty.jsonl", &[]);
    assert!(
        model.prepare(&[ab()], |c| c.data.eval_files = vec![empty]).unwrap_err().to_string().contains("empty.jsonl")
    );
}

#[test]
fn progress_counts_bytes_to_the_end() {
    let model = Fixture::default().build();
    let mut config = RunConfig::default();
    config.data.files = vec![model.data("a.jsonl", &vec![ab(); 250]), model.data("b.jsonl", &[ab()])];
    let total: u64 = config.data.files.iter().map(|f| std::fs::metadata(f).unwrap().len()).sum();
    let mut stages = Vec::new();
    super::pipeline::prepare(&config, model.files(), super::Date::from_unix(0), &mut |s| stages.push(s), &|| Ok(()))
        .unwrap();
    assert_eq!(stages.len(), 3 + 1 + 1);
    assert!(stages.windows(2).all(|w| w[0].done <= w[1].done) && stages.iter().all(|s| s.total == total));
    assert_eq!(stages.last().unwrap().done, total);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    assert!(refused(&[ab()], |c| c.data.max_length = 1).contains("max_length = 1"));
    assert!(refused(&[ab()], |c| c.data.eval_split = 1.0).contains("eval_split"));
    assert!(refused(&[ab()], |c| c.data.files.clear()).contains("no data file"));
}

#[test]
fn rows_that_need_a_template_say_so_when_there_is_none() {
    let model = || Fixture { template: Json::Null, ..Fixture::default() }.build();
    let error = model().prepare(&[ab()], |_| {}).unwrap_err().to_string();
    assert!(error.contains("no chat template") && error.contains("rows.jsonl:1"), "{error}");
    assert_eq!(model().prepare(&[json!({"text": "a"})], |_| {}).unwrap().facts.rows_used, 1);
}

#[test]
fn bad_lines_are_skipped_only_under_the_flag() {
    let model = Fixture::default().build();
    let path = model.data("bad.jsonl", &[ab(), ab()]);
    std::fs::write(&path, std::fs::read_to_string(&path).unwrap() + "{broken\n").unwrap();
    let with = |skip| {
        model.prepare(&[], |c| {
            c.data.files = vec![path.clone()];
            c.data.skip_bad_lines = skip;
        })
    };
    assert!(with(false).unwrap_err().to_string().contains("line 3, column 2"));
    let data = with(true).unwrap();
    assert_eq!((data.facts.rows_used, data.facts.dropped["not readable as JSON"]), (2, 1));
    assert!(noted(&data, "1 unreadable lines skipped (first: line 3, column 2"));
}

#[test]
fn case_fo_27_text_that_ends_in_its_end_token_and_a_line_end_gets_no_second() {
    let rows = [json!({"text": "a<|im_end|>\n"}), json!({"text": "a<|im_end|>"}), json!({"text": "a\n"})];
    let data = run(&rows, |_| {}).unwrap();
    let ends = |i: usize| data.train[i].ids.iter().filter(|id| **id == IM_END).count();
    assert_eq!((0..3).map(ends).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(data.train[2].ids, [97, 10, IM_END]);
}
