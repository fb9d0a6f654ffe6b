//! The screen: a reducer ([`app::App`]), a session that performs its effects, screens that draw it, and the terminal.
//!
//! Nothing here trains, plans or reads a file of a model: it asks `engine::Services` and shows events.

mod actions;
pub mod app;
mod ascii;
pub mod fetch;
pub mod form;
pub mod frame;
mod fuzzy;
pub mod input;
pub mod keys;
pub mod list;
pub mod live;
mod noise;
pub mod overlay;
mod overlays;
pub mod run;
pub mod screens;
pub mod session;
pub mod term;
pub mod text;
pub mod theme;
pub mod widgets;

pub use app::{App, Effect, Msg, Screen};
pub use live::{UiOptions, buffer_text, run};
pub use session::{Request, Session};
pub use theme::Theme;
