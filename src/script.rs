//! Scripts: the real workbench driven line by line without a terminal.
use crate::error::ExitCode;
use crate::engine::Services;
use crate::ui::UiOptions;
use std::io::Write;
use std::path::Path;
/// x
pub fn run(_f: &Path, _s: &mut dyn Services, _o: UiOptions, _out: &mut dyn Write, _err: &mut dyn Write) -> ExitCode { ExitCode::Ok }
