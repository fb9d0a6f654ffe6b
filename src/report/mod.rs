//! The run's record: consumes events only, owns the run's folder, writes the report.
//!
//! A run's folder holds `config.toml plan.json env.json metrics.jsonl events.jsonl` from its start and `report.json
//! report.md report.html loss.svg` from its end. The report is made from those files alone, by [`summary`]: the same
//! recording gives the same report, also of a run that died.

mod compare;
mod env;
mod past;
mod phases;
mod plot;
mod record;
mod render;
mod replay;
mod runs;
mod scrub;
mod sections;
pub(crate) mod stats;
mod summary;
mod told;
mod trace;
pub mod types;
mod verify;
mod write;

pub use compare::{Comparison, MAX_WIDTH, compare, flat_settings};
pub use env::{environment, tool};
pub use past::past;
pub use record::{CONFIG_FILE, ENV_FILE, METRICS_FILE, PLAN_FILE, Recorder, started_in};
pub use replay::{EVENTS_FILE, Recording, Replay, Timed, read_events, replay};
pub use runs::{list, load, new_run_dir, with_ledger};
pub use summary::{comparable, summary};
pub use types::{REPORT_SCHEMA, Report};
pub use verify::{Verified, verify};
pub use write::{HTML_FILE, MARKDOWN_FILE, PLOT_FILE, REPORT_FILE, rebuild};
