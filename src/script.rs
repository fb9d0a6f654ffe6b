//! Scripts: the real workbench driven line by line without a terminal.
//!
//! One command a line, `#` comments, strings in double quotes; see [`parse`] for the grammar. Exit codes: 0 every
//! expectation held, 1 one failed or a wait ran out, 2 a bad line, 3 an infeasible plan at `run`, 4 stopped early but
//! saved, 130 and 143 on signals.

mod drive;
mod expect;
mod parse;

pub use drive::run;
pub use parse::{Command, Line, Op, Operand, Scope, Wait, parse};

#[cfg(test)]
mod tests;
