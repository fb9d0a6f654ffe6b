//! Expectations: a path in the report or the plan, compared with a value or with another path.

use super::parse::{Op, Operand, Scope};
use crate::ui::screens::report::at;
use serde_json::Value;

/// What paths are looked up in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Facts<'a> {
    /// The report of the run that has finished.
    pub report: Option<&'a Value>,
    /// The plan.
    pub plan: Option<&'a Value>,
}

impl Facts<'_> {
    fn find(&self, path: &str, scope: Scope) -> Option<&Value> {
        let mode = |name: &str| self.plan.and_then(|p| at(p, &format!("modes.{name}.{path}")));
        match scope {
            Scope::Any => self.report.and_then(|r| at(r, path)).or_else(|| self.plan.and_then(|p| at(p, path))),
            Scope::Lora => mode("lora"),
            Scope::Full => mode("full"),
        }
    }

    /// Checks an expectation.
    ///
    /// # Errors
    /// What was found instead.
    pub fn check(&self, path: &str, op: Op, value: &Operand, scope: Scope) -> Result<(), String> {
        let where_ = match (scope, self.report, self.plan) {
            (Scope::Any, Some(_), _) => "the report or the plan",
            (Scope::Any, None, Some(_)) => "the plan (no run has finished)",
            (Scope::Any, None, None) => "the report or the plan: there is neither yet",
            (Scope::Lora, ..) => "modes.lora of the plan",
            (Scope::Full, ..) => "modes.full of the plan",
        };
        let found = self.find(path, scope).ok_or_else(|| format!("no '{path}' in {where_}"))?;
        let wanted = match value {
            Operand::Value(v) => v.clone(),
            Operand::Word(w) => self.find(w, scope).cloned().unwrap_or_else(|| Value::String(w.clone())),
        };
        if holds(found, op, &wanted)? {
            Ok(())
        } else {
            Err(format!("'{path}' is {found}, expected {} {wanted}", sign(op)))
        }
    }
}

fn sign(op: Op) -> &'static str {
    match op {
        Op::Eq => "==",
        Op::Ne => "!=",
        Op::Lt => "<",
        Op::Le => "<=",
        Op::Gt => ">",
        Op::Ge => ">=",
        Op::Contains => "contains",
    }
}

fn holds(found: &Value, op: Op, wanted: &Value) -> Result<bool, String> {
    let equal = || match (number(found), number(wanted)) {
        (Some(a), Some(b)) => a == b,
        _ => found == wanted,
    };
    let ordered = |test: fn(f64, f64) -> bool| match (number(found), number(wanted)) {
        (Some(a), Some(b)) => Ok(test(a, b)),
        _ => Err(format!("{found} {} {wanted}: only numbers have an order", sign(op))),
    };
    match op {
        Op::Eq => Ok(equal()),
        Op::Ne => Ok(!equal()),
        Op::Lt => ordered(|a, b| a < b),
        Op::Le => ordered(|a, b| a <= b),
        Op::Gt => ordered(|a, b| a > b),
        Op::Ge => ordered(|a, b| a >= b),
        Op::Contains => Ok(contains(found, wanted)),
    }
}

fn number(v: &Value) -> Option<f64> {
    v.as_f64()
}

fn contains(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::String(text), Value::String(part)) => text.contains(part.as_str()),
        (Value::Array(items), Value::String(_)) => items.iter().any(|i| i == wanted || contains(i, wanted)),
        (Value::Array(items), _) => items.contains(wanted),
        (Value::Object(map), Value::String(key)) => map.contains_key(key),
        _ => false,
    }
}
