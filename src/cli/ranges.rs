//! Numbers of `generate`, read alike from the command line and from the model's `generation_config.json`.

/// A temperature.
///
/// # Errors
/// Not a finite number from 0 on.
pub fn temperature(text: &str) -> Result<f64, String> {
    within(text, |x| x >= 0.0, "a number from 0 on")
}

/// A nucleus mass.
///
/// # Errors
/// Not a number from 0 to 1.
pub fn mass(text: &str) -> Result<f64, String> {
    within(text, |x| (0.0..=1.0).contains(&x), "a number from 0 to 1")
}

/// A repetition penalty.
///
/// # Errors
/// Not a finite number above 0.
pub fn penalty(text: &str) -> Result<f64, String> {
    within(text, |x| x > 0.0, "a number above 0 (1 changes nothing)")
}

/// The number that `text` is, if it is `good`.
///
/// # Errors
/// It isn't, or isn't finite: what is wanted.
pub fn within(text: &str, good: impl Fn(f64) -> bool, want: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(x) if x.is_finite() && good(x) => Ok(x),
        _ => Err(format!("{want} is expected")),
    }
}
