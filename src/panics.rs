//! Panics are told once: by the error that a caught one becomes, else by one clean line on stderr.

use crate::error::{Error, Result};
use crate::text::clean;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::io::Write;
use std::panic::{AssertUnwindSafe, Location, PanicHookInfo, catch_unwind};

thread_local! {
    /// A panic of this thread becomes an error.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// Where the last one of those was.
    static AT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work` of `who`; a panic in it is an error that says where it was, and nothing else is printed of it.
///
/// # Errors
/// `work` panicked.
pub fn caught<T>(who: &str, work: impl FnOnce() -> T) -> Result<T> {
    let outer = CAUGHT.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(outer);
    done.map_err(|panic| {
        let said = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let at = AT.take().map(|at| format!(" ({at})")).unwrap_or_default();
        Error::run(format!("{who} panicked: {}{at}", clean(said.unwrap_or("no message"))))
    })
}

/// Whether a panic of this thread becomes an error now, so that nobody need act on it.
#[must_use]
pub fn is_caught() -> bool {
    CAUGHT.get()
}

/// Replaces the message that Rust prints of a panic, raw and on several lines. With `RUST_BACKTRACE` the frames follow.
pub fn install() {
    std::panic::set_hook(Box::new(|info| {
        if is_caught() {
            AT.set(info.location().map(place));
            return;
        }
        let frames = Backtrace::capture();
        let mut line = said(info);
        if frames.status() == BacktraceStatus::Captured {
            line += &format!("{frames}\n");
        }
        // `eprintln!` panics where stderr is gone.
        let _ = std::io::stderr().write_all(line.as_bytes());
    }));
}

fn said(info: &PanicHookInfo<'_>) -> String {
    let thread = std::thread::current();
    let name = clean(thread.name().unwrap_or("without a name"));
    let at = info.location().map(|at| format!(" ({})", place(at))).unwrap_or_default();
    format!("error: thread {name} panicked: {}{at}\n", clean(info.payload_as_str().unwrap_or("no message")))
}

/// File and line, without the folder that this machine keeps sources in.
fn place(at: &Location<'_>) -> String {
    let file = at.file();
    let package = file.split_once("/registry/src/").and_then(|(_, rest)| rest.split_once('/'));
    let library = file.strip_prefix("/rustc/").and_then(|rest| rest.split_once('/'));
    format!("{}:{}", package.or(library).map_or(file, |(_, rest)| rest), at.line())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::hostile;

    #[test]
    fn case_fo_82_a_caught_panic_is_an_error_of_one_clean_line() {
        install();
        let e = caught("the library", || {
            if is_caught() {
                panic!("bad\u{1b}[2J piece\nof {}", "é".repeat(1000));
            }
        });
        assert!(!is_caught(), "what comes after it is not");
        let text = e.unwrap_err().to_string();
        assert!(text.starts_with("the library panicked: bad\\u{1b}[2J piece of é"), "{text}");
        assert!(text.contains("(src/panics.rs:") && text.len() < 500 && !text.chars().any(hostile), "{text}");
        assert_eq!(caught("one", || caught("two", || 7).unwrap()).unwrap(), 7);
        // An index out of bounds is told of by the standard library's own words.
        let text = caught("the reader", || [1, 2][std::hint::black_box(5)]).unwrap_err().to_string();
        assert!(text.starts_with("the reader panicked: index out of bounds"), "{text}");
    }
}
