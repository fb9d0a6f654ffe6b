//! The program: runs the command line and exits with its code.

fn main() {
    std::process::exit(blockstream_tui::cli::main() as i32);
}
