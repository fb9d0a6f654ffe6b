//! Rows out of JSONL files and JSON arrays, one at a time and in bounded memory, with the place of every fault.
//!
//! A file whose first character is `[` is an array of rows; any other holds one row a line, or is one object over many.
//! Nothing is ever replaced: bytes that aren't UTF-8, lone surrogates and NUL stop the import (or, with
//! `skip_bad_lines`, skip that row).

use super::template::clean;
use crate::error::{Error, Result};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

/// Longest row, in bytes.
pub const MAX_ROW: usize = 64 << 20;

/// One row of a file.
#[derive(Debug)]
pub struct Record {
    /// The row.
    pub value: Json,
    /// Line it starts on, from 1.
    pub line: u64,
    /// Bytes read so far, this row included.
    pub end: u64,
}

/// What else was in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Rows handed on.
    pub rows: u64,
    /// Lines without anything on them.
    pub blank: u64,
    /// Rows skipped because they couldn't be read, and the first of them: `line 7, column 3: …`.
    pub bad: Option<(u64, String)>,
    /// It started with a UTF-8 byte order mark.
    pub bom: bool,
    /// SHA-256 of the whole file.
    pub sha256: [u8; 32],
}

/// Reads `path` and hands each row to `row`. With `skip_bad`, rows that can't be read are counted instead of fatal.
///
/// # Errors
/// Those of `row`; a file that can't be opened, isn't UTF-8 JSON or has a row past [`MAX_ROW`].
pub fn read(path: &Path, skip_bad: bool, row: &mut dyn FnMut(Record) -> Result<()>) -> Result<Summary> {
    if path.is_dir() {
        return Err(Error::data(format!("'{}' is a folder", path.display())).next("name the files in it"));
    }
    refuse_special(path)?;
    let file = File::open(path).map_err(|e| Error::input("read", path, e))?;
    let mut source =
        Source { reader: BufReader::with_capacity(1 << 18, file), path, sha: Sha256::new(), offset: 0, line: 1 };
    let mut summary = Summary { bom: source.check_start()?, ..Summary::default() };
    let array = source.skip_blank_start(&mut summary.blank)? == Some(b'[');
    if array {
        source.advance(1)?;
    }
    let mut text = Vec::new();
    loop {
        text.clear();
        let more = if array { source.element(&mut text)? } else { source.line(&mut text)? };
        let Some((line, offset)) = more else { break };
        if !array && text.iter().all(u8::is_ascii_whitespace) {
            summary.blank += 1;
            continue;
        }
        // A line that only opens an object begins a row that is printed over many lines.
        if !array && text.trim_ascii() == b"{" {
            source.rest(&mut text)?;
        }
        match parse(&text, line, offset) {
            Ok(value) => {
                summary.rows += 1;
                row(Record { value, line, end: source.offset })?;
            }
            Err(fault) if skip_bad => {
                summary.bad = Some(summary.bad.take().map_or((1, fault), |(n, first)| (n + 1, first)))
            }
            Err(fault) => {
                return Err(Error::data(format!("'{}' {fault}", path.display())).next(advice(&text, array)));
            }
        }
    }
    source.drain()?;
    summary.sha256 = source.sha.finalize().into();
    Ok(summary)
}

/// Data is read more than once (a resume checks it), and opening a pipe waits for who writes it.
///
/// # Errors
/// A pipe, a socket or a device, by its kind.
pub fn refuse_special(path: &Path) -> Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(meta) = std::fs::metadata(path) else { return Ok(()) };
    let kind = match meta.file_type() {
        t if t.is_fifo() => "a pipe",
        t if t.is_socket() => "a socket",
        t if t.is_char_device() || t.is_block_device() => "a device",
        _ => return Ok(()),
    };
    Err(Error::data(format!("'{}' is {kind}, and data is read more than once", path.display()))
        .next("write the rows to a file first, and name that"))
}

fn advice(text: &[u8], array: bool) -> &'static str {
    if std::str::from_utf8(text).is_err() {
        "convert the file to UTF-8, or set data.skip_bad_lines = true to leave such rows out"
    } else if !array && text.trim_ascii_start().starts_with(b"{") && !text.trim_ascii_end().ends_with(b"}") {
        "write one row per line, or a JSON array of rows; data.skip_bad_lines = true leaves broken lines out"
    } else {
        "repair the row, or set data.skip_bad_lines = true to leave such rows out"
    }
}

/// A row's JSON; the fault as `line 3, column 7 (byte 120): what`.
fn parse(bytes: &[u8], line: u64, offset: u64) -> Result<Json, String> {
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        format!("line {line}, byte {}: 0x{:02X} isn't UTF-8", offset + at as u64, bytes[at])
    })?;
    let value: Json = serde_json::from_str(text).map_err(|e| {
        // serde_json ends its message with the place inside this text; ours is the place in the file.
        let what = e.to_string();
        let what = what.split(" at line ").next().unwrap_or_default();
        let before: usize = text.split_inclusive('\n').take(e.line().saturating_sub(1)).map(str::len).sum();
        let at = offset + (before + e.column().saturating_sub(1)) as u64;
        format!("line {}, column {} (byte {at}): {}", line + e.line().saturating_sub(1) as u64, e.column(), clean(what))
    })?;
    if has_nul(&value) {
        let at = text.find("\\u0000").unwrap_or(0);
        return Err(format!("line {line}, byte {}: the character NUL (\\u0000)", offset + at as u64));
    }
    Ok(value)
}

fn has_nul(value: &Json) -> bool {
    match value {
        Json::String(s) => s.contains('\0'),
        Json::Array(items) => items.iter().any(has_nul),
        Json::Object(map) => map.iter().any(|(k, v)| k.contains('\0') || has_nul(v)),
        _ => false,
    }
}

struct Source<'p> {
    reader: BufReader<File>,
    path: &'p Path,
    sha: Sha256,
    offset: u64,
    line: u64,
}

impl Source<'_> {
    fn peek(&mut self) -> Result<&[u8]> {
        self.reader.fill_buf().map_err(|e| Error::io("read", self.path, e))
    }

    /// Takes `n` bytes that [`Source::peek`] showed.
    fn advance(&mut self, n: usize) -> Result<()> {
        let buffer = self.reader.fill_buf().map_err(|e| Error::io("read", self.path, e))?;
        self.sha.update(&buffer[..n]);
        self.line += buffer[..n].iter().filter(|b| **b == b'\n').count() as u64;
        self.offset += n as u64;
        self.reader.consume(n);
        Ok(())
    }

    fn drain(&mut self) -> Result<()> {
        loop {
            match self.peek()?.len() {
                0 => return Ok(()),
                n => self.advance(n)?,
            }
        }
    }

    /// Looks at the first bytes: takes a UTF-8 byte order mark (true), names what isn't UTF-8 text.
    fn check_start(&mut self) -> Result<bool> {
        let head = self.peek()?;
        let what = match head {
            [0xEF, 0xBB, 0xBF, ..] => {
                self.advance(3)?;
                return Ok(true);
            }
            [0xFF, 0xFE, 0, 0, ..] => "UTF-32LE text",
            [0, 0, 0xFE, 0xFF, ..] => "UTF-32BE text",
            [0xFF, 0xFE, ..] | [b'{' | b'[', 0, ..] => "UTF-16LE text",
            [0xFE, 0xFF, ..] | [0, b'{' | b'[', ..] => "UTF-16BE text",
            [0x1F, 0x8B, ..] => "a gzip file",
            [0x28, 0xB5, 0x2F, 0xFD, ..] => "a zstd file",
            [b'P', b'K', 3, 4, ..] => "a zip file",
            [b'P', b'A', b'R', b'1', ..] => "a Parquet file",
            h if h.starts_with(b"version https://git-lfs") => "a Git-LFS pointer",
            _ => return Ok(false),
        };
        Err(Error::data(format!("'{}' is {what}, not UTF-8 JSON", self.path.display()))
            .next("convert it to JSONL in UTF-8"))
    }

    /// Skips white space before the first row; counts whole blank lines. The first byte after it.
    fn skip_blank_start(&mut self, blank: &mut u64) -> Result<Option<u8>> {
        loop {
            let Some(&byte) = self.peek()?.first() else {
                return Ok(None);
            };
            if !byte.is_ascii_whitespace() {
                return Ok(Some(byte));
            }
            *blank += u64::from(byte == b'\n');
            self.advance(1)?;
        }
    }

    /// The next line without its end, with its number and offset; `None` at the end of the file.
    fn line(&mut self, text: &mut Vec<u8>) -> Result<Option<(u64, u64)>> {
        let start = (self.line, self.offset);
        loop {
            let buffer = self.peek()?;
            if buffer.is_empty() {
                return Ok((!text.is_empty()).then_some(start));
            }
            let end = buffer.iter().position(|b| *b == b'\n');
            let n = end.unwrap_or(buffer.len());
            text.extend_from_slice(&buffer[..n]);
            self.advance(n + usize::from(end.is_some()))?;
            self.check_length(text, start)?;
            if end.is_some() {
                if text.last() == Some(&b'\r') {
                    text.pop();
                }
                return Ok(Some(start));
            }
        }
    }

    /// The next element of the array, as text; `None` after the closing bracket.
    fn element(&mut self, text: &mut Vec<u8>) -> Result<Option<(u64, u64)>> {
        loop {
            match self.peek()?.first() {
                None => return Err(self.broken("the array isn't closed by ']'")),
                Some(b']') => {
                    self.advance(1)?;
                    return self.nothing_follows().map(|()| None);
                }
                Some(b) if b.is_ascii_whitespace() || *b == b',' => self.advance(1)?,
                Some(_) => break,
            }
        }
        let start = (self.line, self.offset);
        let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
        loop {
            let buffer = self.peek()?;
            if buffer.is_empty() {
                return Err(self.broken("the array isn't closed by ']'"));
            }
            let mut end = None;
            for (i, &byte) in buffer.iter().enumerate() {
                match byte {
                    _ if escaped => escaped = false,
                    b'\\' if in_string => escaped = true,
                    b'"' => in_string = !in_string,
                    _ if in_string => {}
                    b'{' | b'[' => depth += 1,
                    b',' | b']' if depth == 0 => {
                        end = Some(i);
                        break;
                    }
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
            }
            let n = end.unwrap_or(buffer.len());
            text.extend_from_slice(&buffer[..n]);
            self.advance(n)?;
            self.check_length(text, start)?;
            if end.is_some() {
                return Ok(Some(start));
            }
        }
    }

    /// Adds lines to `text` up to the brace at the margin that closes the object begun there.
    fn rest(&mut self, text: &mut Vec<u8>) -> Result<()> {
        let start = (self.line, self.offset);
        let mut more = Vec::new();
        while {
            more.clear();
            self.line(&mut more)?.is_some()
        } {
            text.push(b'\n');
            text.extend_from_slice(&more);
            self.check_length(text, start)?;
            if more.starts_with(b"}") {
                break;
            }
        }
        Ok(())
    }

    fn nothing_follows(&mut self) -> Result<()> {
        loop {
            match self.peek()?.first() {
                None => return Ok(()),
                Some(b) if b.is_ascii_whitespace() => self.advance(1)?,
                Some(_) => return Err(self.broken("text follows the array")),
            }
        }
    }

    fn check_length(&self, text: &[u8], (line, offset): (u64, u64)) -> Result<()> {
        if text.len() <= MAX_ROW {
            return Ok(());
        }
        let what =
            format!("'{}' line {line} (byte {offset}) is longer than {} MiB", self.path.display(), MAX_ROW >> 20);
        Err(Error::data(what).next("write one row per line"))
    }

    fn broken(&self, what: &str) -> Error {
        Error::data(format!("'{}' line {} (byte {}): {what}", self.path.display(), self.line, self.offset))
            .next("is the copy complete?")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn rows(bytes: &[u8], skip: bool) -> Result<(Vec<(u64, Json)>, Summary)> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, bytes).unwrap();
        let mut out = Vec::new();
        let summary = read(&path, skip, &mut |r| {
            out.push((r.line, r.value));
            Ok(())
        })?;
        Ok((out, summary))
    }

    fn fault(bytes: &[u8]) -> String {
        let error = rows(bytes, false).unwrap_err();
        assert_eq!(error.exit_code(), crate::error::ExitCode::Usage);
        error.to_string()
    }

    #[test]
    fn case_da_01_a_byte_order_mark_costs_no_row() {
        let (out, summary) = rows(b"\xef\xbb\xbf{\"text\":\"a\"}\n{\"text\":\"b\"}\n", false).unwrap();
        assert_eq!(out.len(), 2);
        assert_eq!(out[0].1["text"], "a");
        assert!(summary.bom);
        let utf16 = |be: bool| -> Vec<u8> {
            "\u{feff}{\"text\":\"a\"}\n"
                .encode_utf16()
                .flat_map(|u| if be { u.to_be_bytes() } else { u.to_le_bytes() })
                .collect()
        };
        assert!(fault(&utf16(false)).contains("UTF-16LE"));
        assert!(fault(&utf16(true)).contains("UTF-16BE"));
        assert!(fault(&utf16(false)[2..]).contains("UTF-16LE"), "also without its mark");
    }

    #[test]
    fn case_da_02_line_ends_blank_lines_and_a_broken_line() {
        let text = "{\"text\":\"a\"}\r\n\r\n{\"text\":\"b\"}\r\n   \r\n{\"text\":\"c\"}\r\n\r\n{\"text\":\"d\"}";
        let (out, summary) = rows(text.as_bytes(), false).unwrap();
        assert_eq!(out.iter().map(|r| r.0).collect::<Vec<_>>(), [1, 3, 5, 7]);
        assert!(out.iter().all(|r| !r.1["text"].as_str().unwrap().contains('\r')));
        assert_eq!((summary.rows, summary.blank), (4, 3));

        let broken = format!("{text}\r\n{{broken");
        let message = fault(broken.as_bytes());
        assert!(message.contains("line 8, column 2"), "{message}");
        let (out, summary) = rows(broken.as_bytes(), true).unwrap();
        assert_eq!(out.len(), 4);
        let (count, first) = summary.bad.unwrap();
        assert_eq!(count, 1);
        assert!(first.starts_with("line 8, column 2"), "{first}");
        assert!(fault(b"# comment\n{\"text\":\"a\"}\n").contains("line 1, column 1"));
    }

    #[test]
    fn case_da_04_bytes_that_are_not_text_are_refused_with_their_place() {
        let message = fault(b"{\"text\":\"a\"}\n{\"text\":\"caf\xe9\"}\n");
        assert!(message.contains("rows.jsonl") && message.contains("line 2, byte 25: 0xE9 isn't UTF-8"), "{message}");
        let message = fault(b"{\"text\":\"a\"}\n{\"text\":\"\\ud800\"}\n");
        assert!(
            message.contains("line 2, column") && message.contains("(byte 2") && message.contains("hex escape"),
            "{message}"
        );
        let message = fault(b"{\"text\":\"\\u0000\"}\n");
        assert!(message.contains("line 1, byte 9") && message.contains("NUL"), "{message}");
        assert!(fault(b"{\"text\":\"a\x00b\"}\n").contains("line 1"));
        let (out, summary) = rows(b"{\"text\":\"\\u0000\"}\n{\"text\":\"\xe9\"}\n{\"text\":\"ok\"}\n", true).unwrap();
        assert_eq!((out.len(), summary.bad.unwrap().0), (1, 2));
    }

    #[test]
    fn case_da_05_one_enormous_line_is_refused_in_bounded_memory() {
        // 300 MB without a newline, made as a sparse file; the reader stops at its limit.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("big.jsonl");
        let mut file = File::create(&path).unwrap();
        file.write_all(b"{\"text\":\"ok\"}\n{\"text\":\"").unwrap();
        file.set_len(300_000_000).unwrap();
        let mut seen = 0;
        let error = read(&path, true, &mut |_| {
            seen += 1;
            Ok(())
        })
        .unwrap_err();
        assert_eq!(seen, 1);
        assert!(error.to_string().contains("line 2 (byte 14) is longer than 64 MiB"), "{error}");
    }

    #[test]
    fn an_array_of_rows_reads_like_lines_of_them() {
        let text = "\n[ {\"text\": \"a ] , } \\\" é\"},\n {\"text\":\n \"b\", \"x\": [1, {\"y\": 2}]} ]\n";
        let (out, summary) = rows(text.as_bytes(), false).unwrap();
        assert_eq!(out.iter().map(|r| r.0).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(out[0].1["text"], "a ] , } \" é");
        assert_eq!(out[1].1["x"][1]["y"], 2);
        assert_eq!(summary.rows, 2);
        assert!(fault(b"[{\"text\": 1}").contains("isn't closed"));
        assert!(fault(b"[{\"text\": 1}] x").contains("follows the array"));
        let message = fault(b"[\n{\"a\": 1},\n{\"b\":\n tru}]");
        assert!(message.contains("line 4, column 5"), "{message}");
        assert!(rows(b"[]", false).unwrap().0.is_empty() && rows(b"", false).unwrap().0.is_empty());
    }

    #[test]
    fn other_kinds_of_file_are_named() {
        assert!(fault(b"PAR1....").contains("Parquet"));
        assert!(fault(b"\x1f\x8b....").contains("gzip"));
        assert!(fault(b"version https://git-lfs.x/spec/v1\noid").contains("Git-LFS"));
    }

    #[test]
    fn the_hash_is_the_files_own() {
        let (_, summary) = rows(b"{\"text\":\"a\"}\n", false).unwrap();
        let want: [u8; 32] = Sha256::digest(b"{\"text\":\"a\"}\n").into();
        assert_eq!(summary.sha256, want);
    }

    #[test]
    fn deep_nesting_is_an_error_not_a_crash() {
        assert!(fault("[".repeat(100_000).as_bytes()).contains("isn't closed"));
        assert!(fault(format!("{}\n", "{\"a\":".repeat(100_000)).as_bytes()).contains("recursion limit"));
    }

    #[test]
    fn case_fo_36_one_object_over_many_lines_is_a_row() {
        let text = b"{\n  \"text\": \"a\",\n  \"x\": {\n    \"y\": [1]\n  }\n}\n";
        let (out, summary) = rows(text, false).unwrap();
        assert_eq!((out.len(), out[0].0, summary.rows), (1, 1, 1));
        assert_eq!(out[0].1["x"]["y"][0], 1);
        // Several of them, one after the other, are several rows.
        let two = [&text[..], &text[..]].concat();
        let (out, _) = rows(&two, false).unwrap();
        assert_eq!(out.iter().map(|r| r.0).collect::<Vec<_>>(), [1, 7]);
        let message = fault(b"{\n \"a\": 1,\n \"b\": xyz\n}\n");
        assert!(message.contains("line 3, column"), "{message}");
        assert!(fault(b"{\n \"a\": 1,\n").contains("line"), "one that is never closed is a fault");
    }

    #[test]
    fn case_fo_45b_a_data_file_may_be_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe.jsonl");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the name is a C string that lives through the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let error = read(&path, false, &mut |_| Ok(())).unwrap_err();
        assert_eq!(error.exit_code(), crate::error::ExitCode::Usage);
        assert!(error.to_string().contains("is a pipe"), "{error}");
    }
}
