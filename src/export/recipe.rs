//! A run's settings in the words of other trainers, saying in comments what those can't express.

use super::yaml::Yaml;
use crate::config::TARGETS;
use crate::error::{Error, Result};
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;

/// The settings of a run, from its folder.
pub(super) struct Recipe {
    run_id: String,
    config: Value,
    /// Detected format of the rows, where the config says `auto`.
    format: String,
    /// Layers with adapters, when not all have them.
    layers: Option<Vec<u64>>,
}

impl Recipe {
    /// Reads `config.toml`, and what the run found out about data and layers from `report.json` and `plan.json`.
    pub(super) fn read(run_dir: &Path) -> Result<Recipe> {
        let path = run_dir.join("config.toml");
        let text = fs::read_to_string(&path)
            .map_err(|e| Error::io("read", &path, e).next("give a run's folder under results/"))?;
        let config: Value =
            toml::from_str(&text).map_err(|e| Error::usage(format!("'{}' is damaged: {e}", path.display())))?;
        let json = |name: &str| -> Value {
            fs::read(run_dir.join(name)).ok().and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default()
        };
        let stated = config["data"]["format"].as_str().unwrap_or("auto").to_string();
        let found = json("report.json")["data"]["format"].as_str().unwrap_or_default().to_string();
        let format = if stated == "auto" && !found.is_empty() { found } else { stated };
        let plan = json("plan.json");
        let lowest = plan["modes"]["lora"]["lowest_trainable"].as_u64().unwrap_or(0);
        let blocks = plan["n_blocks"].as_u64().unwrap_or(0).min(100_000);
        let run_id = run_dir.file_name().map_or("run".into(), |n| n.to_string_lossy().into_owned());
        Ok(Recipe { run_id, config, format, layers: (lowest > 0).then(|| (lowest..blocks).collect()) })
    }

    fn at(&self, section: &str, key: &str) -> Value {
        self.config[section][key].clone()
    }
    /// As [`Recipe::at`], but nothing where the value is 0: there 0 means "not used".
    fn used(&self, section: &str, key: &str) -> Value {
        let value = self.at(section, key);
        if value.as_f64() == Some(0.0) { Value::Null } else { value }
    }
    fn text(&self, section: &str, key: &str) -> &str {
        self.config[section][key].as_str().unwrap_or_default()
    }
    fn is(&self, section: &str, key: &str, value: &str) -> bool {
        self.text(section, key) == value
    }
    fn lora(&self) -> bool {
        !self.is("train", "mode", "full")
    }

    /// A whole number where it is one: both trainers declare an integer.
    fn alpha(&self) -> Value {
        match self.config["lora"]["alpha"].as_f64() {
            Some(x) if x.fract() == 0.0 && x.abs() < 1e15 => json!(x as i64),
            _ => self.at("lora", "alpha"),
        }
    }

    /// The public name when the config gives one, else the path it gives.
    fn base(&self) -> String {
        match self.config["model"]["name"].as_str() {
            Some(name) => name.to_string(),
            None => absolute(self.text("model", "path")),
        }
    }

    fn targets(&self) -> Vec<String> {
        let list = self.config["lora"]["targets"].as_array().into_iter().flatten();
        let names: Vec<String> = list.filter_map(|t| t.as_str().map(String::from)).collect();
        if names.iter().any(|n| n == "all-linear") {
            return TARGETS.map(String::from).to_vec();
        }
        names
    }

    fn data_files(&self, key: &str) -> Vec<String> {
        let list = self.config["data"][key].as_array().into_iter().flatten();
        list.filter_map(|f| f.as_str().map(absolute)).collect()
    }

    /// `max_steps`, or epochs under the key that the other program has for them.
    fn length(&self, y: &mut Yaml, epochs: &str) {
        match self.used("train", "max_steps") {
            Value::Null => y.set(epochs, self.at("train", "num_train_epochs")),
            steps => y.set("max_steps", steps),
        }
    }

    /// Below 1 the warm-up is a share of all steps.
    fn warmup(&self, y: &mut Yaml) {
        match self.config["train"]["warmup_steps"].as_f64() {
            Some(share) if share > 0.0 && share < 1.0 => y.set("warmup_ratio", share),
            Some(steps) => y.set("warmup_steps", steps as u64),
            None => {}
        }
    }

    fn head(&self, y: &mut Yaml, command: &str) {
        y.note(&format!("The run {} of blockstream-tui, for another trainer. Paths are this machine's.", self.run_id));
        y.note(&format!("Start it here with: {command}"));
        y.note("That trainer needs memory for the whole model: its numbers will be near, not equal.");
    }

    /// `config.yaml` for axolotl.
    pub(super) fn axolotl(&self) -> String {
        let mut y = Yaml::default();
        self.head(&mut y, "axolotl train config.yaml");
        y.set("base_model", self.base());
        if self.lora() {
            y.set("adapter", "lora");
            y.set("lora_r", self.at("lora", "r"));
            y.set("lora_alpha", self.alpha());
            y.set("lora_dropout", self.at("lora", "dropout"));
            y.set("lora_target_modules", self.targets());
            if self.config["lora"]["rslora"] == true {
                y.set("peft_use_rslora", true);
            }
            y.set("peft_layers_to_transform", json!(self.layers));
        }
        if self.is("data", "train_on", "last_assistant") {
            y.note("The run trained on the last reply only; axolotl trains on every reply of a row.");
        }
        y.set("datasets", self.axolotl_sets("files"));
        let eval = self.axolotl_sets("eval_files");
        if eval.is_empty() {
            y.set("val_set_size", self.at("data", "eval_split"));
        } else {
            y.set("test_datasets", eval);
        }
        y.set("train_on_inputs", self.is("data", "train_on", "all"));
        y.set("sequence_len", self.at("data", "max_length"));
        let excess = match self.text("data", "over_long") {
            "drop" => "drop",
            "error" => "raise",
            _ => "truncate",
        };
        y.set("excess_length_strategy", excess);
        y.set("sample_packing", false);
        y.set("micro_batch_size", self.at("train", "per_device_train_batch_size"));
        y.set("gradient_accumulation_steps", self.at("train", "gradient_accumulation_steps"));
        self.length(&mut y, "num_epochs");
        y.set("optimizer", "adamw_torch");
        y.set("learning_rate", self.at("train", "learning_rate"));
        y.set("lr_scheduler", self.at("train", "lr_scheduler_type"));
        self.common(&mut y);
        y.set("bf16", "auto");
        y.set("gradient_checkpointing", true);
        y.set("output_dir", "./outputs");
        y.text()
    }

    fn common(&self, y: &mut Yaml) {
        self.warmup(y);
        y.set("weight_decay", self.at("train", "weight_decay"));
        y.set("max_grad_norm", self.used("train", "max_grad_norm"));
        y.set("eval_steps", self.used("train", "eval_steps"));
        y.set("save_steps", self.used("train", "save_steps"));
        y.set("save_total_limit", self.used("train", "save_total_limit"));
        y.set("seed", self.at("train", "seed"));
    }

    fn axolotl_sets(&self, key: &str) -> Vec<Value> {
        let chat = |field: &str, role: &str, content: &str| {
            json!({
                "type": "chat_template",
                "field_messages": field,
                "message_property_mappings": { "role": role, "content": content },
            })
        };
        let how = match self.format.as_str() {
            "sharegpt" => chat("conversations", "from", "value"),
            "alpaca" => json!({ "type": "alpaca" }),
            "prompt_completion" => json!({ "type": {
                "field_instruction": "prompt",
                "field_output": "completion",
                "format": "{instruction}",
                "no_input_format": "{instruction}",
            }}),
            "text" => json!({ "type": "completion", "field": "text" }),
            _ => chat("messages", "role", "content"),
        };
        let one = |path: String| {
            let mut set = json!({ "path": path, "ds_type": "json", "split": "train" });
            if let (Some(set), Some(how)) = (set.as_object_mut(), how.as_object()) {
                set.extend(how.clone());
            }
            set
        };
        self.data_files(key).into_iter().map(one).collect()
    }

    /// Names of the data sets in `dataset_info.json`, for `key`.
    fn set_names(&self, key: &str) -> Vec<String> {
        (1..=self.data_files(key).len()).map(|n| format!("{key}_{n}")).collect()
    }

    /// `train.yaml` for LLaMA-Factory; its data sets are in [`Recipe::dataset_info`] beside it.
    pub(super) fn llamafactory(&self) -> String {
        let mut y = Yaml::default();
        self.head(&mut y, "llamafactory-cli train train.yaml");
        y.set("model_name_or_path", self.base());
        y.set("stage", if self.format == "text" { "pt" } else { "sft" });
        y.set("do_train", true);
        y.set("finetuning_type", if self.lora() { "lora" } else { "full" });
        if self.lora() {
            y.set("lora_rank", self.at("lora", "r"));
            y.set("lora_alpha", self.alpha());
            y.set("lora_dropout", self.at("lora", "dropout"));
            y.set("lora_target", self.targets().join(","));
            if self.config["lora"]["rslora"] == true {
                y.set("use_rslora", true);
            }
            if let Some(layers) = &self.layers {
                y.note(&format!("The run trained the upper {} layers only; this trainer adapts all.", layers.len()));
            }
        }
        y.note("No 'template' key: the tokenizer's own is parsed. Older versions need one, such as llama3 or qwen.");
        y.set("dataset_dir", ".");
        y.set("dataset", self.set_names("files").join(","));
        let eval = self.set_names("eval_files");
        let evaluates = !eval.is_empty() || self.config["data"]["eval_split"].as_f64() > Some(0.0);
        if eval.is_empty() {
            y.set("val_size", self.used("data", "eval_split"));
        } else {
            y.set("eval_dataset", eval.join(","));
        }
        if evaluates && !self.used("train", "eval_steps").is_null() {
            y.set("eval_strategy", "steps");
        }
        y.set("cutoff_len", self.at("data", "max_length"));
        y.set("packing", false);
        if self.is("data", "train_on", "all") && self.format != "text" {
            y.set("train_on_prompt", true);
        }
        if self.is("data", "train_on", "last_assistant") {
            y.set("mask_history", true);
        }
        y.set("per_device_train_batch_size", self.at("train", "per_device_train_batch_size"));
        y.set("gradient_accumulation_steps", self.at("train", "gradient_accumulation_steps"));
        self.length(&mut y, "num_train_epochs");
        y.set("optim", "adamw_torch");
        y.set("learning_rate", self.at("train", "learning_rate"));
        y.set("lr_scheduler_type", self.at("train", "lr_scheduler_type"));
        self.common(&mut y);
        y.set("bf16", true);
        y.set("output_dir", "outputs");
        y.text()
    }

    /// `dataset_info.json` for LLaMA-Factory.
    pub(super) fn dataset_info(&self) -> String {
        let how = match self.format.as_str() {
            "sharegpt" => json!({ "formatting": "sharegpt", "columns": { "messages": "conversations" } }),
            "alpaca" => json!({ "formatting": "alpaca" }),
            "prompt_completion" => {
                json!({ "formatting": "alpaca", "columns": { "prompt": "prompt", "response": "completion" } })
            }
            "text" => json!({ "formatting": "alpaca", "columns": { "prompt": "text" } }),
            _ => json!({
                "formatting": "sharegpt",
                "columns": { "messages": "messages" },
                "tags": {
                    "role_tag": "role",
                    "content_tag": "content",
                    "user_tag": "user",
                    "assistant_tag": "assistant",
                    "system_tag": "system",
                },
            }),
        };
        let mut all = Map::new();
        for key in ["files", "eval_files"] {
            for (name, file) in self.set_names(key).into_iter().zip(self.data_files(key)) {
                let mut set = json!({ "file_name": file });
                if let (Some(set), Some(how)) = (set.as_object_mut(), how.as_object()) {
                    set.extend(how.clone());
                }
                all.insert(name, set);
            }
        }
        format!("{:#}\n", Value::Object(all))
    }
}

/// A path that holds from any folder, if it is one that exists here; a hub id stays as it is.
fn absolute(path: &str) -> String {
    let given = Path::new(path);
    match std::path::absolute(given) {
        Ok(full) if given.exists() => full.to_string_lossy().into_owned(),
        _ => path.to_string(),
    }
}
