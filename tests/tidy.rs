//! Rules of the source tree that the compiler doesn't know: directions between rooms, sizes, words that must not be
//! there. Every check prints all it finds, and is itself tried on snippets that must fail.

#![expect(clippy::unwrap_used, reason = "a test stops where its set-up fails")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Rooms by row: a file may name only rooms of lower rows, and its own. Rooms in one set may name each other.
const ROWS: [&[&str]; 12] = [
    &["lib", "build", "units", "error", "event", "engine", "files", "clock", "text", "panics", "config"],
    &["checkpoint", "device"],
    &["plan"],
    &["store"],
    &["stream"],
    &["model"],
    &["data"],
    &["train", "infer"],
    &["report", "export"],
    &["worker", "bench", "doctor"],
    &["ui"],
    &["cli", "script", "bin"],
];
/// Rows whose rooms may name each other: the foundation, and the program's own front.
const OPEN_ROWS: [usize; 2] = [0, 11];
/// What the consumers of events may name beside themselves: not the engine.
const CONSUMERS: [&str; 2] = ["report", "ui"];
const CONSUMERS_MAY_NAME: [usize; 4] = [0, 1, 2, 8];
/// `engine.rs` is the seam that names the planner's answer.
const EXCEPTIONS: [(&str, &str); 1] = [("engine", "plan")];

const MAX_LINES: usize = 600;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Source files under `src`, as `(path inside src, text)`.
fn sources() -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut open = vec![root().join("src")];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let name = path.strip_prefix(root().join("src")).unwrap().to_str().unwrap().to_string();
                out.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    out.sort();
    assert!(out.len() > 20, "only {} files under src: is this the repository?", out.len());
    out
}

fn row_of(room: &str) -> Option<usize> {
    ROWS.iter().position(|rooms| rooms.contains(&room))
}

/// `ui` for `ui/app.rs`, `cli` for `cli.rs`.
fn room_of(file: &str) -> &str {
    let first = file.split('/').next().unwrap_or(file);
    first.strip_suffix(".rs").unwrap_or(first)
}

/// `text` with comments, strings and character literals blanked, line breaks kept.
fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    let blank = |out: &mut String, from: usize, to: usize| {
        out.extend(chars[from..to].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
    };
    while i < chars.len() {
        let rest = &chars[i..];
        let word_before = i > 0 && (chars[i - 1].is_alphanumeric() || chars[i - 1] == '_');
        let end = match rest {
            ['/', '/', ..] => i + rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => i + block_comment(rest),
            ['r' | 'b', ..] if !word_before && raw_string(rest).is_some() => i + raw_string(rest).unwrap_or(1),
            ['"', ..] => i + quoted(rest),
            ['\'', '\\', _, ..] => i + 3 + rest[3..].iter().position(|c| *c == '\'').map_or(0, |n| n + 1),
            ['\'', _, '\'', ..] => i + 3,
            _ => {
                out.push(chars[i]);
                i += 1;
                continue;
            }
        };
        let end = end.min(chars.len());
        blank(&mut out, i, end);
        i = end;
    }
    out
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i < rest.len() {
        match rest[i..] {
            ['/', '*', ..] => (depth, i) = (depth + 1, i + 2),
            ['*', '/', ..] => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            break;
        }
    }
    i
}

/// Length of a raw string (`r"…"`, `r#"…"#`, `br"…"`) that `rest` begins with.
fn raw_string(rest: &[char]) -> Option<usize> {
    let start = if rest[0] == 'b' { 1 } else { 0 };
    if rest.get(start) != Some(&'r') {
        return None;
    }
    let hashes = rest[start + 1..].iter().take_while(|c| **c == '#').count();
    let open = start + 1 + hashes;
    if rest.get(open) != Some(&'"') {
        return None;
    }
    let close: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
    let body = &rest[open + 1..];
    let at = body.windows(close.len()).position(|w| w == close).unwrap_or(body.len());
    Some(open + 1 + at + close.len())
}

fn quoted(rest: &[char]) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != '"' {
        i += if rest[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// Rooms that the code names by `crate::…`, with the line; groups (`crate::{a, b::c}`) and paths in code count too.
fn rooms_named(text: &str) -> Vec<(usize, String)> {
    let code = code_only(text);
    let mut out = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let line = code[..at].matches('\n').count() + 1;
        let rest = &code[at + "crate::".len()..];
        let names = match rest.strip_prefix('{') {
            Some(group) => group_heads(group),
            None => vec![word(rest)],
        };
        out.extend(names.into_iter().filter(|n| !n.is_empty()).map(|n| (line, n)));
    }
    out
}

fn word(text: &str) -> String {
    text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// First words of the top-level parts of a `{…}` group whose brace is already taken.
fn group_heads(group: &str) -> Vec<String> {
    let (mut depth, mut heads, mut fresh) = (0, Vec::new(), true);
    for (i, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => fresh = true,
            c if fresh && !c.is_whitespace() => {
                heads.push(word(&group[i..]));
                fresh = false;
            }
            _ => {}
        }
    }
    heads
}

fn check_directions(file: &str, text: &str) -> Vec<String> {
    let room = room_of(file);
    let Some(row) = row_of(room) else {
        return vec![format!("{file}: '{room}' is in no row; add it to ROWS and to ARCHITECTURE.md")];
    };
    let mut found = Vec::new();
    for (line, other) in rooms_named(text) {
        // Items of the crate's root (macros, re-exports) are not rooms.
        let Some(to) = row_of(&other) else { continue };
        let sibling = to == row && OPEN_ROWS.contains(&row);
        let consumer = !CONSUMERS.contains(&room) || CONSUMERS_MAY_NAME.contains(&to);
        let listed = EXCEPTIONS.contains(&(room, other.as_str()));
        if other == room || listed || file == "lib.rs" {
            continue;
        }
        if !(to < row || sibling) || !consumer {
            found.push(format!("{file}:{line}: {room} (row {row}) names {other} (row {to})"));
        }
    }
    found
}

fn check_header(file: &str, text: &str) -> Vec<String> {
    let ok = text.starts_with("//!") || text.starts_with("#![doc = include_str!");
    if ok { vec![] } else { vec![format!("{file}: does not begin with a //! header")] }
}

fn check_length(file: &str, text: &str) -> Vec<String> {
    let n = text.lines().count();
    if n <= MAX_LINES { vec![] } else { vec![format!("{file}: {n} lines, at most {MAX_LINES}")] }
}

fn check_unsafe(file: &str, text: &str) -> Vec<String> {
    if file == "device/cuda.rs" || file.starts_with("device/shim") {
        return vec![];
    }
    let lines: Vec<&str> = text.lines().collect();
    let code = code_only(text);
    // A declaration only states a duty, under `# Safety` (clippy checks that); a block or an impl acts on it.
    let uses = code.lines().enumerate().filter(|(_, l)| acts_unsafely(l));
    let lacking = uses.filter(|(i, _)| {
        let above = &lines[i.saturating_sub(4)..*i];
        !above.iter().any(|l| l.trim_start().starts_with("// SAFETY:"))
    });
    lacking.map(|(i, _)| format!("{file}:{}: unsafe without a // SAFETY: line", i + 1)).collect()
}

/// Whether the line has an unsafe block or impl, not only the declaration of an unsafe function or trait.
fn acts_unsafely(line: &str) -> bool {
    let split = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let words: Vec<&str> = split.filter(|w| !w.is_empty()).collect();
    let declares = |i: usize| words.get(i + 1).is_some_and(|w| ["fn", "trait", "extern"].contains(w));
    (0..words.len()).any(|i| words[i] == "unsafe" && !declares(i))
}

fn check_words(file: &str, text: &str) -> Vec<String> {
    // In halves, so that this file passes its own check.
    let banned = [
        concat!("#[al", "low("),
        concat!("#![al", "low("),
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("XX", "X:"),
    ];
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for word in banned.iter().filter(|w| line.contains(*w)) {
            found.push(format!("{file}:{}: {word}", i + 1));
        }
    }
    found
}

/// A run executes its plan: what `[stream]` and `[wear]` ask for is the planner's to read, not that of rooms below a run.
fn check_plan_is_all(file: &str, text: &str) -> Vec<String> {
    if !["store", "stream", "model", "train", "infer"].contains(&room_of(file)) {
        return Vec::new();
    }
    let code = code_only(text);
    let reads = |line: &&str| {
        ["StreamSection", "WearSection", "config.stream", "config.wear"].iter().any(|word| line.contains(word))
    };
    code.lines().filter(reads).map(|line| format!("{file}: a key past the plan: {}", line.trim())).collect()
}

/// Paths of one machine, and hosts of package registries. Tests that need a home folder say `alice`'s, or `u`'s.
fn check_places(file: &str, text: &str) -> Vec<String> {
    let folders = [concat!("/ro", "ot/"), concat!("/wo", "rk/"), concat!("/Us", "ers/")];
    let hosts = [
        concat!("py", "pi.org"),
        concat!("python", "hosted.org"),
        concat!("cra", "tes.io"),
        concat!("npm", "js."),
        concat!("index", "-url"),
        concat!("PIP_INDEX", "_URL"),
    ];
    // Tools that must name the public index in their own files.
    let names_index = ["Cargo.lock", ".deny.toml"].contains(&file);
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut hits: Vec<&str> = folders.into_iter().filter(|p| begins_path(line, p)).collect();
        let others = line.replace(concat!("/ho", "me/alice"), "").replace(concat!("/ho", "me/u/"), "");
        if begins_path(&others, concat!("/ho", "me/")) {
            hits.push("a home folder");
        }
        hits.extend(hosts.into_iter().filter(|h| !names_index && line.contains(h)));
        found.extend(hits.into_iter().map(|h| format!("{file}:{}: {h}", i + 1)));
    }
    found
}

/// Whether `prefix` stands in `line` at the beginning of a path that goes on.
fn begins_path(line: &str, prefix: &str) -> bool {
    line.match_indices(prefix).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + prefix.len()..].chars().next();
        let inside = before.is_some_and(|c| c.is_alphanumeric() || "._-~}*)".contains(c));
        !inside && after.is_some_and(|c| c.is_alphanumeric() || c == '.' || c == '_')
    })
}

/// Text files that git tracks (or would), or, outside a checkout, every text file that isn't ignored by name.
fn tracked_texts() -> Vec<(String, String)> {
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let names: BTreeSet<PathBuf> = match listed {
        Ok(out) if out.status.success() && !out.stdout.is_empty() => out
            .stdout
            .split(|b| *b == 0)
            .filter(|n| !n.is_empty())
            .map(|n| String::from_utf8_lossy(n).as_ref().into())
            .collect(),
        _ => walk(root()),
    };
    let texts = names.into_iter().filter_map(|name| {
        let text = String::from_utf8(fs::read(root().join(&name)).ok()?).ok()?;
        (!text.contains('\0')).then(|| (name.to_string_lossy().into_owned(), text))
    });
    texts.collect()
}

fn walk(top: &Path) -> BTreeSet<PathBuf> {
    let ignored = ["target", ".git", ".libtorch", ".demo", ".gpu", "results"];
    let (mut out, mut open) = (BTreeSet::new(), vec![top.to_path_buf()]);
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).unwrap().flatten() {
            let path = entry.path();
            if ignored.iter().any(|i| entry.file_name() == *i) {
                continue;
            }
            if path.is_dir() {
                open.push(path);
            } else {
                out.insert(path.strip_prefix(top).unwrap().to_path_buf());
            }
        }
    }
    out
}

/// Exit codes that `error.rs` defines, as `(name, number)`.
fn exit_codes(error_rs: &str) -> Vec<(String, String)> {
    let body = error_rs.split_once("pub enum ExitCode {").map_or("", |(_, b)| b);
    let body = body.split_once("\n}").map_or("", |(b, _)| b);
    let lines = body.lines().filter(|l| !l.trim_start().starts_with("//"));
    lines
        .filter_map(|l| l.trim().trim_end_matches(',').split_once(" = "))
        .map(|(name, number)| (name.to_string(), number.to_string()))
        .collect()
}

fn check_readme(readme: &str, codes: &[(String, String)]) -> Vec<String> {
    let lower = readme.to_lowercase();
    let Some(at) = lower.find("exit code") else {
        return vec!["README.md: no part about exit codes".into()];
    };
    let numbers: BTreeSet<&str> = readme[at..].split(|c: char| !c.is_ascii_digit()).collect();
    let missing = codes.iter().filter(|(_, n)| !numbers.contains(n.as_str()));
    missing.map(|(name, n)| format!("README.md: exit code {n} ({name}) is not explained")).collect()
}

fn report(found: Vec<String>) {
    assert!(found.is_empty(), "{} found:\n{}", found.len(), found.join("\n"));
}

fn over_sources(check: fn(&str, &str) -> Vec<String>) {
    report(sources().iter().flat_map(|(file, text)| check(file, text)).collect());
}

#[test]
fn rooms_name_only_lower_rows() {
    over_sources(check_directions);
}

#[test]
fn a_run_reads_no_key_past_its_plan() {
    over_sources(check_plan_is_all);
}

#[test]
fn every_file_has_a_header() {
    over_sources(check_header);
}

#[test]
fn no_file_is_too_long() {
    let mut found: Vec<String> = sources().iter().flat_map(|(f, t)| check_length(f, t)).collect();
    found.extend(test_files().iter().flat_map(|(f, t)| check_length(f, t)));
    report(found);
}

#[test]
fn unsafe_is_explained() {
    over_sources(check_unsafe);
}

#[test]
fn no_silenced_lints_and_no_promises() {
    let files = tracked_texts();
    let code = files.iter().filter(|(f, _)| f.ends_with(".rs") || f.ends_with(".sh") || f == "Makefile");
    report(code.flat_map(|(f, t)| check_words(f, t)).collect());
}

#[test]
fn no_machine_paths_and_no_registries() {
    report(tracked_texts().iter().flat_map(|(f, t)| check_places(f, t)).collect());
}

#[test]
fn the_readme_explains_every_exit_code() {
    let error_rs = fs::read_to_string(root().join("src/error.rs")).unwrap();
    let codes = exit_codes(&error_rs);
    assert!(codes.len() >= 7, "{codes:?}");
    let readme = fs::read_to_string(root().join("README.md")).unwrap_or_default();
    report(check_readme(&readme, &codes));
}

/// Rust files under `tests`.
fn test_files() -> Vec<(String, String)> {
    tracked_texts().into_iter().filter(|(f, _)| f.starts_with("tests/") && f.ends_with(".rs")).collect()
}

#[test]
fn the_checks_can_fail() {
    let directions = |file: &str, text: &str| check_directions(file, text).len();
    assert_eq!(directions("plan/cost.rs", "use crate::train::Trainer;"), 1);
    assert_eq!(directions("plan/cost.rs", "use crate::{checkpoint::Arch, ui, worker::{a, b}};"), 2);
    assert_eq!(directions("plan/cost.rs", "fn f() { crate::stream::go() }"), 1);
    assert_eq!(directions("checkpoint/mod.rs", "use crate::device::Machine;"), 1);
    assert_eq!(directions("ui/app.rs", "use crate::worker::Worker;\nuse crate::data::Row;"), 2);
    assert_eq!(directions("ui/app.rs", "use crate::report::list;\nuse crate::plan::plan;\nuse crate::ui::x;"), 0);
    assert_eq!(directions("report/mod.rs", "use crate::train::x;"), 1);
    assert_eq!(directions("engine.rs", "use crate::plan::PlanReport;\nuse crate::event::Event;"), 0);
    assert_eq!(directions("units.rs", "use crate::plan::PlanReport;"), 1);
    assert_eq!(directions("cli.rs", "use crate::script::run;\nuse crate::ui::app;"), 0);
    assert_eq!(directions("newroom/mod.rs", ""), 1);
    assert_eq!(directions("plan/a.rs", "// use crate::ui::x;\n/* crate::ui::y /* */ */ let s = \"crate::ui::z\";"), 0);
    assert_eq!(directions("plan/a.rs", "let c = '\"'; use crate::ui::x; let d = '\\''; let e = r#\"crate::ui\"#;"), 1);

    assert_eq!(check_plan_is_all("train/open.rs", "let n = job.config.stream.loss_chunk;").len(), 1);
    assert_eq!(check_plan_is_all("train/open.rs", "let n = plan.stream.loss_chunk; // config.stream").len(), 0);
    assert_eq!(check_plan_is_all("plan/room.rs", "let n = config.stream.loss_chunk;").len(), 0);

    assert_eq!(check_header("a.rs", "use std::fs;\n//! late").len(), 1);
    assert_eq!(check_header("a.rs", "//! Does a thing.").len(), 0);
    assert_eq!(check_length("a.rs", &"x\n".repeat(601)).len(), 1);
    assert_eq!(check_length("a.rs", &"x\n".repeat(600)).len(), 0);

    let block = concat!("    un", "safe { f() }\n");
    assert_eq!(check_unsafe("store/a.rs", block).len(), 1);
    assert_eq!(check_unsafe("store/a.rs", &format!("// SAFETY: f asks for nothing.\n{block}")).len(), 0);
    assert_eq!(check_unsafe("store/a.rs", "// it is unsafe\nlet s = \"unsafe\";").len(), 0);
    assert_eq!(check_unsafe("store/a.rs", "unsafe fn f();\nunsafe extern \"C\" fn g() {}").len(), 0);
    assert_eq!(check_unsafe("store/a.rs", "unsafe impl Send for A {}").len(), 1);
    assert_eq!(check_unsafe("device/cuda.rs", block).len(), 0);
    assert_eq!(check_unsafe("device/shim/mod.rs", block).len(), 0);

    for bad in [concat!("#[al", "low(dead_code)]"), concat!("// TO", "DO: later"), concat!("// FIX", "ME")] {
        assert_eq!(check_words("a.rs", bad).len(), 1, "{bad}");
    }
    for bad in [
        concat!("see /ro", "ot/x"),
        concat!("'/ho", "me/bob/y'"),
        concat!("dir=/wo", "rk/z"),
        concat!("https://py", "pi.org/simple"),
        concat!("pip --index", "-url x"),
    ] {
        assert_eq!(check_places("a.md", bad).len(), 1, "{bad}");
    }
    for good in ["src/work/x", concat!("the /ho", "me/ folder"), concat!("$ORIGIN/../wo", "rk/x"), "https://a.b/c"] {
        assert_eq!(check_places("a.md", good).len(), 0, "{good}");
    }
    assert_eq!(check_places("Cargo.lock", concat!("cra", "tes.io-index")).len(), 0);

    let codes = [("Ok".to_string(), "0".to_string()), ("Interrupted".to_string(), "130".to_string())];
    assert_eq!(check_readme("## Exit codes\n0 fine, 130 SIGINT", &codes).len(), 0);
    assert_eq!(check_readme("130 rows. ## Exit codes\n0 fine", &codes).len(), 1);
    assert_eq!(check_readme("nothing", &codes).len(), 1);
    assert_eq!(exit_codes("pub enum ExitCode {\n    /// Fine = 3.\n    Ok = 0,\n    Bad = 1,\n}").len(), 2);
}

#[test]
fn case_fo_46_programs_without_libtorch_have_a_folder_of_their_own() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let makes_programs = |l: &&str| l.contains("$(NO_TORCH)") && (l.contains("$(TESTS)") || l.contains("cargo build"));
    let lines: Vec<&str> = makefile.lines().filter(makes_programs).collect();
    assert!(!lines.is_empty(), "nothing is tested without libtorch");
    for line in lines {
        assert!(line.contains("CARGO_TARGET_DIR=$(NO_TORCH_DIR)"), "would replace target/debug's program: {line}");
    }
}
