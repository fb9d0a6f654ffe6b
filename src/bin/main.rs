//! The program: parses the command line and exits with its code.
fn main() {
    #[cfg(feature = "tui")]
    std::process::exit(blockstream_tui::cli::main() as i32);
}
