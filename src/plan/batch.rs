//! How many rows a micro-batch could have, and what the same rows would cost by accumulation.

use super::fit::{Fit, fit_like};
use super::shape::Job;
use super::time;
use super::verdict::Inputs;
use crate::units::secs;

/// Most rows looked at.
const MOST: u64 = 1024;
/// What is worth telling.
const FASTER: f64 = 1.05;

/// The largest micro-batch that fits beside what `like` keeps where it is (fewer blocks on the device may make room),
/// its step, and that of as many micro-batches of the rows asked for; `None` where more rows don't fit.
pub fn batch(x: &Inputs<'_>, like: &Fit) -> Option<String> {
    if !like.problems.is_empty() || x.job.rows > MOST {
        return None;
    }
    let with = |rows: u64, micro: u64| Job { rows, micro, ..x.job.clone() };
    let fit = |job: &Job| Some(fit_like(like, x.model, job, x.machine, x.config)).filter(|f| f.problems.is_empty());
    let (mut fits, mut over) = (x.job.rows, MOST + 1);
    while over - fits > 1 {
        let rows = (fits + over) / 2;
        if fit(&with(rows, x.job.micro)).is_some() { fits = rows } else { over = rows }
    }
    let times = fits / x.job.rows;
    if times < 2 {
        return None;
    }
    let rows = times * x.job.rows;
    let whole = with(rows, x.job.micro);
    let parts = with(x.job.rows, x.job.micro * times);
    let seconds = |job: &Job| Some(time::least(x.model, job, x.machine, &fit(job)?));
    let whole_s = seconds(&whole)?;
    let more = if fits == MOST { "at least " } else { "" };
    let faster = match seconds(&parts) {
        Some(by_parts) if whole_s * FASTER < by_parts => {
            format!("each row would take {:.0} % less time", (1.0 - whole_s / by_parts) * 100.0)
        }
        Some(_) => "it would not be faster per row".into(),
        None => format!("a step would take {}", secs(whole_s)),
    };
    Some(format!("batch could be up to {more}{rows}; {faster}"))
}
