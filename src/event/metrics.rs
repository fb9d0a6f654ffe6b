//! The metrics of a step: figures with names, in the order in which they were given.
//!
//! The objective and the tuner name them, in the words of transformers' `log_history` and TRL's trainers; recorder,
//! screen and checkpoints carry whatever there is.

use crate::text;
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The loss that is minimised, mean of the step.
pub const LOSS: &str = "loss";
/// Norm of the gradient before it is clipped.
pub const GRAD_NORM: &str = "grad_norm";
/// The learning rate of the step.
pub const LEARNING_RATE: &str = "learning_rate";

/// Figures by name, each name once. In JSON an object; a figure that is not finite is `null`, and NaN when read back.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metrics(Vec<(String, f64)>);

impl Metrics {
    /// The figure that is called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter().find_map(|(n, x)| (n == name).then_some(x))
    }

    /// Names and figures in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0.iter().map(|(name, x)| (name.as_str(), *x))
    }

    /// Label and figure of each as people read them, e.g. `grad norm` and `0.163`.
    pub fn shown(&self) -> impl Iterator<Item = (String, String)> {
        self.iter().map(|(name, x)| match name {
            GRAD_NORM => ("grad norm".into(), format!("{x:.3}")),
            LEARNING_RATE => ("lr".into(), format!("{x:.2e}")),
            _ => (text::clean(name).replace('_', " "), format!("{x:.4}")),
        })
    }
}

impl<N: Into<String>> Extend<(N, f64)> for Metrics {
    /// Puts each at the end; a name that is there already keeps its place and takes the new figure.
    fn extend<I: IntoIterator<Item = (N, f64)>>(&mut self, more: I) {
        for (name, x) in more {
            let name = name.into();
            match self.0.iter_mut().find(|(n, _)| *n == name) {
                Some(old) => old.1 = x,
                None => self.0.push((name, x)),
            }
        }
    }
}

impl<N: Into<String>> FromIterator<(N, f64)> for Metrics {
    fn from_iter<I: IntoIterator<Item = (N, f64)>>(all: I) -> Metrics {
        let mut metrics = Metrics::default();
        metrics.extend(all);
        metrics
    }
}

impl<N: Into<String>, const K: usize> From<[(N, f64); K]> for Metrics {
    fn from(all: [(N, f64); K]) -> Metrics {
        all.into_iter().collect()
    }
}

impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(Some(self.0.len()))?;
        for (name, x) in self.iter() {
            map.serialize_entry(name, &x.is_finite().then_some(x))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Metrics {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Metrics, D::Error> {
        d.deserialize_map(ByName)
    }
}

struct ByName;

impl<'de> Visitor<'de> for ByName {
    type Value = Metrics;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of numbers")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metrics, A::Error> {
        let mut metrics = Metrics::default();
        while let Some((name, x)) = map.next_entry::<String, Option<f64>>()? {
            metrics.extend([(name, x.unwrap_or(f64::NAN))]);
        }
        Ok(metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventKind, StepRecord};

    #[test]
    fn metrics_survive_json_in_order_and_nan_is_null() {
        let metrics = Metrics::from([(LOSS, f64::NAN), ("rewards/margins", 0.5), (GRAD_NORM, f64::INFINITY)]);
        let e = Event { seq: 3, at: 1.5, kind: EventKind::Step(StepRecord { metrics, ..StepRecord::default() }) };
        let text = serde_json::to_string(&e).unwrap();
        let metrics = r#""metrics":{"loss":null,"rewards/margins":0.5,"grad_norm":null}"#;
        assert!(text.contains("\"event\":\"step\"") && text.contains(metrics), "{text}");
        let EventKind::Step(s) = serde_json::from_str::<Event>(&text).unwrap().kind else { panic!("{text}") };
        let names: Vec<&str> = s.metrics.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [LOSS, "rewards/margins", GRAD_NORM]);
        assert!(s.loss().is_nan() && s.metrics.get(GRAD_NORM).is_some_and(f64::is_nan));
        assert_eq!((s.metrics.get("rewards/margins"), s.metrics.get("other")), (Some(0.5), None));
        assert!(StepRecord::default().loss().is_nan(), "no loss is no number");
    }

    #[test]
    fn a_name_stands_once_and_where_it_stood_first() {
        let mut metrics = Metrics::from([(LOSS, 1.0), (GRAD_NORM, 2.0)]);
        metrics.extend([(LOSS, 3.0), (LEARNING_RATE, 1e-4)]);
        assert_eq!(metrics, Metrics::from([(LOSS, 3.0), (GRAD_NORM, 2.0), (LEARNING_RATE, 1e-4)]));
        let twice: Metrics = serde_json::from_str(r#"{"loss":1,"loss":2}"#).unwrap();
        assert_eq!(twice, Metrics::from([(LOSS, 2.0)]));
        assert!(serde_json::from_str::<Metrics>(r#"{"loss":"low"}"#).is_err());
    }

    #[test]
    fn what_nobody_here_has_heard_of_is_shown_under_its_own_name() {
        let metrics = Metrics::from([(LEARNING_RATE, 1e-4), (GRAD_NORM, 1.0), ("rewards/my_margin\u{1b}", 0.25)]);
        let shown: Vec<(String, String)> = metrics.shown().collect();
        let text: Vec<String> = shown.iter().map(|(label, figure)| format!("{label} {figure}")).collect();
        assert_eq!(text[..2], ["lr 1.00e-4", "grad norm 1.000"]);
        assert!(text[2].starts_with("rewards/my margin") && text[2].ends_with(" 0.2500"), "{}", text[2]);
        assert!(!text[2].contains('\u{1b}'), "{}", text[2]);
    }
}
