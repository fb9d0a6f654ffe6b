//! The program: parses the command line and exits with its code.
fn main() {}
