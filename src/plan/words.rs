//! Plain words for what a plan names by its keys: terms of memory, resources, limits, the machine in a line.

use super::types::{Ceiling, PlanReport};
use crate::device::Machine;
use crate::device::probe::CPU_GUESSED;
use crate::units::count;

/// A memory or space term by the words a newcomer knows it by; the key itself where there are none.
#[must_use]
pub fn term(key: &str) -> String {
    let words = match key {
        "adapters" => "adapter, its gradients and optimizer state",
        "allocator_slack" => "allocator reserve",
        "attention_scratch" => "attention workspace",
        "block_activations" => "activations of one layer",
        "block_gradients" => "gradients of one layer",
        "boundaries" => "stored layer inputs",
        "cublas_workspaces" => "math library workspace",
        "embedding" => "input embedding",
        "embedding_gradients" => "gradients of the embedding",
        "export_16_bit" => "16-bit export",
        "head" => "output layer",
        "loss_chunk" => "loss computation",
        "operator_copies" => "temporary copies",
        "positions_and_labels" => "positions and labels",
        "process" => "the program itself",
        "ram_tier" => "layers kept in RAM",
        "resident_blocks" => "layers kept loaded",
        "result_16_bit" => "finetuned model in 16 bit",
        "ring" => "buffer for disk reads",
        "slots" => "layers being loaded",
        "state_in_two_extents" => "weights and optimizer state, two copies",
        "unpacked_block" => "one layer unpacked",
        "weights_and_state" => "weights and optimizer state",
        key => return key.replace('_', " "),
    };
    words.into()
}

/// What can be done about a term that is too large; `None` where nothing simple helps.
pub(super) fn smaller(key: &str) -> Option<&'static str> {
    Some(match key {
        "boundaries" | "positions_and_labels" | "attention_scratch" | "operator_copies" | "block_activations" => {
            "lower data.max_length or the batch"
        }
        "loss_chunk" => "lower stream.loss_chunk",
        "adapters" => "lower lora.r",
        _ => return None,
    })
}

/// `disk`, `link`, `compute` or `cpu` as every screen, report and line names it.
#[must_use]
pub fn resource(key: &str) -> &str {
    match key {
        "link" => "RAM→GPU",
        "compute" => "GPU",
        "cpu" => "CPU",
        key => key,
    }
}

/// What limited a step on `device`, in words: `disk`, `link` or `compute`, as a run says it.
#[must_use]
pub fn limiting<'a>(key: &'a str, device: &str) -> &'a str {
    match (key, device) {
        ("compute", "cpu") => resource("cpu"),
        ("link", "cpu") => "loads",
        (key, _) => resource(key),
    }
}

/// What binds a ceiling, in words.
fn limit(key: &str) -> &str {
    match key {
        "host memory" => "RAM",
        "device memory" => "VRAM",
        "wear" => "SSD wear",
        key => key,
    }
}

/// The largest models that the machine could train, in a sentence; empty where none is known.
#[must_use]
pub fn ceilings(all: &[Ceiling]) -> String {
    let one = |c: &Ceiling| {
        let way = match c.mode.as_str() {
            "lora" => "LoRA",
            "lora_ram" => "LoRA without the disk",
            "full" => "full finetuning",
            "full_8bit" => "full with 8-bit moments",
            "full_ram" => "full in RAM",
            mode => mode,
        };
        format!("{way} {} ({} is the limit)", count(c.params), limit(&c.limit))
    };
    let list: Vec<String> = all.iter().map(one).collect();
    if list.is_empty() { String::new() } else { format!("models like this one, at most: {}", list.join(", ")) }
}

/// What was planned for, in a few words: `what if ram = 32.00 GB`, `profile h200.toml`, `no GPU · disk and CPU speed
/// guessed`.
#[must_use]
pub fn machine(plan: &PlanReport) -> String {
    let m = &plan.machine;
    let mut parts = Vec::new();
    if !plan.what_if.is_empty() {
        parts.push(format!("what if {}", plan.what_if.join(", ")));
    }
    if let Some(profile) = m.source.split("; ").find(|s| s.starts_with("profile ")) {
        parts.push(profile.to_string());
    } else {
        if m.gpu.is_none() {
            parts.push("no GPU".into());
        }
        let guessed = guessed(m);
        if !guessed.is_empty() {
            parts.push(format!("{} speed guessed", guessed.join(" and ")));
        }
    }
    parts.join(" · ")
}

/// What of a machine nobody measured: `disk`, `RAM→GPU`, `GPU`, `CPU`.
pub(super) fn guessed(m: &Machine) -> Vec<&'static str> {
    let mut guessed = Vec::new();
    if m.disk.read_spread.is_none() {
        guessed.push("disk");
    }
    match &m.gpu {
        Some(g) => {
            if g.h2d_spread.is_none() {
                guessed.push("RAM→GPU");
            }
            if g.kernels.is_none() {
                guessed.push("GPU");
            }
        }
        None if m.source.contains(CPU_GUESSED) => guessed.push("CPU"),
        None => {}
    }
    guessed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_term_of_a_plan_is_shown_by_its_key() {
        // Every key that memory and space plans put in: one that is missing here is shown with its underscores gone.
        for key in ["process", "ring", "slots", "boundaries", "operator_copies", "ram_tier", "loss_chunk"] {
            assert_ne!(term(key), key.replace('_', " "), "{key}");
        }
        assert_eq!(term("final_norm"), "final norm");
    }
}
