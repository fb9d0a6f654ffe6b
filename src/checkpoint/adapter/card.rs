//! The adapter's model card: YAML front matter that the hub reads, and how to load it.

use super::AdapterConfig;
use std::fmt::Write;

/// `README.md` of an adapter. Every YAML scalar that isn't ours is a JSON string, which YAML 1.2 reads as it is.
pub(super) fn readme(config: &AdapterConfig, notes: &[&str]) -> String {
    let base = &config.base_model_name_or_path;
    let targets = config.target_modules.join(", ");
    let factor = if config.use_rslora { "alpha / sqrt(r), rsLoRA" } else { "alpha / r" };
    let mut text = format!(
        "---\n\
         base_model: {base_yaml}\n\
         library_name: peft\n\
         pipeline_tag: text-generation\n\
         tags:\n\
         - {tag_yaml}\n\
         - lora\n\
         - blockstream-tui\n\
         ---\n\n\
         # LoRA adapter for {title}\n\n\
         | | |\n|---|---|\n\
         | rank | {r} |\n\
         | alpha | {alpha} |\n\
         | factor | {scale} ({factor}) |\n\
         | targets | {targets} |\n\
         | layers | {layers} |\n\
         | tensors | F32 |\n",
        base_yaml = yaml(base),
        tag_yaml = yaml(&format!("base_model:adapter:{base}")),
        title = markdown(base),
        r = config.r,
        alpha = config.lora_alpha,
        scale = config.scale(),
        targets = markdown(&targets),
        layers = config.layers_to_transform.as_ref().map_or("all".to_string(), |l| spans(l)),
    );
    for note in notes {
        let _ = write!(text, "\n{note}\n");
    }
    let revision = config.revision.as_ref().map_or(String::new(), |r| format!(", revision={}", yaml(r)));
    let _ = write!(
        text,
        "\n```python\n\
         from peft import PeftModel\n\
         from transformers import AutoModelForCausalLM\n\n\
         base = AutoModelForCausalLM.from_pretrained({base}{revision})\n\
         model = PeftModel.from_pretrained(base, \"path/to/this/folder\")\n\
         ```\n",
        base = yaml(base),
    );
    text
}

fn yaml(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn markdown(text: &str) -> String {
    let mut out = String::new();
    for c in crate::text::one_line(text).chars() {
        if "\\`*_[]<>|#".contains(c) && c != '_' {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

/// `0-3, 7` for the layers 0, 1, 2, 3 and 7.
fn spans(layers: &[usize]) -> String {
    let mut sorted = layers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut out: Vec<(usize, usize)> = Vec::new();
    for n in sorted {
        match out.last_mut() {
            Some((_, end)) if *end + 1 == n => *end = n,
            _ => out.push((n, n)),
        }
    }
    let text: Vec<String> = out.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    text.join(", ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn layers_read_as_spans() {
        assert_eq!(super::spans(&[3, 0, 1, 2, 7]), "0-3, 7");
        assert_eq!(super::spans(&[]), "");
    }
}
