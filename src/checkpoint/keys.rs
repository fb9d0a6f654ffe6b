//! What is done with each key of a model's small JSON files: one table per kind of file, so that nothing that means
//! something is passed over in silence.

use super::index::list;
use crate::error::{Error, Result};
use crate::text::clean;
use serde_json::{Map, Value};

/// Says what this program does with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is read: used, or checked where it is read.
    Used,
    /// Nothing that is computed here depends on it: bookkeeping, and settings of other programs.
    Idle,
    /// It asks for what isn't here: a value that isn't off is refused.
    Refused,
    /// It means something and isn't used: a value that isn't off is told.
    Told,
}

/// Keys of one kind of file, in the order of their names.
pub type Table = [(&'static str, Fate)];

/// Looks at every key of `map`, which is what `file` holds: one note names those that mean something and aren't used,
/// keys that `table` doesn't know among them. A value that is off (null, false, 0, empty) means nothing.
///
/// # Errors
/// A key that asks for what isn't here.
pub fn check(file: &str, table: &Table, map: &Map<String, Value>) -> Result<Option<String>> {
    let mut told = Vec::new();
    for (key, value) in map.iter().filter(|(_, value)| !is_off(value)) {
        match table.binary_search_by(|(known, _)| (*known).cmp(key)).map(|at| table[at].1) {
            Ok(Fate::Used | Fate::Idle) => {}
            Ok(Fate::Refused) => {
                return Err(Error::checkpoint(format!(
                    "{file}: '{}' = {} asks for what this version doesn't have",
                    clean(key),
                    clean(&value.to_string())
                ))
                .next("use a model without it"));
            }
            Ok(Fate::Told) | Err(_) => told.push(key.as_str()),
        }
    }
    told.sort_unstable();
    Ok((!told.is_empty()).then(|| format!("{file} has keys that aren't used here: {}", list(told.into_iter()))))
}

/// Whether a value says that something isn't wanted.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) => false,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

use Fate::{Idle, Refused, Told, Used};

/// `config.json` of the families that train: `PreTrainedConfig` and `configuration_{llama,mistral,qwen2,qwen3}.py` of
/// transformers 5.19, and what version 4 wrote beside them.
pub const CONFIG: &Table = &[
    ("_attn_implementation", Idle),
    ("_attn_implementation_autoset", Idle),
    ("_commit_hash", Idle),
    ("_name_or_path", Idle),
    ("add_cross_attention", Refused),
    ("architectures", Used),
    ("attention_bias", Used),
    // transformers drops attention weights in training by it; here only the adapter has dropout.
    ("attention_dropout", Told),
    ("attn_implementation", Idle),
    ("audio_config", Used),
    // Code of the model's own, which transformers runs only when it is trusted.
    ("auto_map", Told),
    ("bad_words_ids", Idle),
    ("begin_suppress_tokens", Idle),
    ("bos_token_id", Used),
    ("chunk_size_feed_forward", Idle),
    ("cross_attention_hidden_size", Idle),
    ("decoder_start_token_id", Idle),
    ("diversity_penalty", Idle),
    ("do_sample", Idle),
    ("dtype", Idle),
    ("early_stopping", Idle),
    ("encoder_no_repeat_ngram_size", Idle),
    ("eos_token_id", Used),
    ("exponential_decay_length_penalty", Idle),
    ("finetuning_task", Idle),
    ("forced_bos_token_id", Idle),
    ("forced_eos_token_id", Idle),
    ("head_dim", Used),
    ("hidden_act", Used),
    ("hidden_size", Used),
    ("id2label", Idle),
    ("initializer_range", Idle),
    ("intermediate_size", Used),
    ("is_decoder", Idle),
    ("is_encoder_decoder", Refused),
    ("is_llama_config", Idle),
    ("label2id", Idle),
    ("layer_types", Used),
    ("length_penalty", Idle),
    ("max_length", Idle),
    ("max_position_embeddings", Used),
    ("max_window_layers", Used),
    ("min_length", Idle),
    ("mlp_bias", Used),
    ("model_type", Used),
    ("name_or_path", Idle),
    ("no_repeat_ngram_size", Idle),
    ("num_attention_heads", Used),
    ("num_beam_groups", Idle),
    ("num_beams", Idle),
    ("num_experts", Used),
    ("num_hidden_layers", Used),
    ("num_key_value_heads", Used),
    ("num_labels", Idle),
    ("num_local_experts", Used),
    ("num_return_sequences", Idle),
    ("output_attentions", Idle),
    ("output_hidden_states", Idle),
    ("output_scores", Idle),
    ("pad_token_id", Used),
    ("partial_rotary_factor", Used),
    ("per_layer_config", Refused),
    ("prefix", Idle),
    // Only a way to split the same sums; transformers 5 ignores it.
    ("pretraining_tp", Idle),
    ("problem_type", Idle),
    ("pruned_heads", Refused),
    ("quantization_config", Used),
    ("remove_invalid_values", Idle),
    ("repetition_penalty", Idle),
    ("return_dict", Idle),
    ("return_dict_in_generate", Idle),
    ("rms_norm_eps", Used),
    ("rope_parameters", Used),
    ("rope_scaling", Used),
    ("rope_theta", Used),
    ("sep_token_id", Idle),
    ("sliding_window", Used),
    ("speech_config", Used),
    ("suppress_tokens", Idle),
    ("task_specific_params", Idle),
    ("temperature", Idle),
    ("tf_legacy_loss", Idle),
    ("tie_encoder_decoder", Refused),
    ("tie_last_hidden_states", Idle),
    ("tie_word_embeddings", Used),
    ("tokenizer_class", Idle),
    ("top_k", Idle),
    ("top_p", Idle),
    ("torch_dtype", Idle),
    ("torchscript", Idle),
    ("transformers.js_config", Idle),
    ("transformers_version", Idle),
    ("typical_p", Idle),
    ("unsloth_fixed", Idle),
    ("unsloth_version", Idle),
    ("use_bfloat16", Idle),
    ("use_cache", Idle),
    ("use_sliding_window", Used),
    ("vision_config", Used),
    ("vocab_size", Used),
];

/// `tokenizer_config.json`: `tokenization_utils_base.py` and `tokenization_utils_tokenizers.py` of transformers 5.19.
/// Other keys that end in `_token` and hold text are tokens of the model's own.
pub const TOKENIZER_CONFIG: &Table = &[
    // Compared with what the post-processor does, which counts.
    ("add_bos_token", Used),
    ("add_eos_token", Used),
    // Classes that build their own pre-tokenizer put a blank in front by it; here the one of tokenizer.json counts.
    ("add_prefix_space", Told),
    ("added_tokens_decoder", Used),
    ("added_tokens_file", Idle),
    ("additional_special_tokens", Used),
    ("auto_map", Told),
    ("backend", Idle),
    ("bos_token", Used),
    ("chat_template", Used),
    ("clean_up_tokenization_spaces", Idle),
    ("cls_token", Used),
    ("device_map", Idle),
    ("do_lower_case", Told),
    ("eos_token", Used),
    ("errors", Idle),
    ("extra_special_tokens", Used),
    ("fast_tokenizer_files", Told),
    ("fix_mistral_regex", Told),
    ("from_slow", Idle),
    ("init_inputs", Idle),
    ("is_fast", Idle),
    ("is_local", Idle),
    ("legacy", Idle),
    ("local_files_only", Idle),
    ("mask_token", Used),
    ("max_length", Idle),
    ("merges_file", Idle),
    ("model_input_names", Idle),
    // `data.max_length` and the positions of the model decide; too long rows are counted.
    ("model_max_length", Idle),
    ("model_specific_special_tokens", Used),
    ("model_type", Idle),
    ("name_or_path", Idle),
    ("pad_to_multiple_of", Idle),
    ("pad_token", Used),
    ("pad_token_type_id", Idle),
    ("padding", Idle),
    ("padding_side", Idle),
    ("processor_class", Idle),
    ("response_schema", Idle),
    ("return_token_type_ids", Idle),
    ("sep_token", Used),
    ("sp_model_kwargs", Idle),
    ("spaces_between_special_tokens", Idle),
    ("special_tokens_map_file", Idle),
    // Every special token of a template would be split into its letters.
    ("split_special_tokens", Refused),
    ("stride", Idle),
    ("strip_accents", Told),
    ("tokenizer_class", Idle),
    ("tokenizer_file", Idle),
    ("tokenizer_version", Idle),
    ("transformers_version", Idle),
    ("truncation", Idle),
    ("truncation_side", Idle),
    ("truncation_strategy", Idle),
    ("unk_token", Used),
    ("use_default_system_prompt", Told),
    ("use_fast", Idle),
    ("verbose", Idle),
    ("vocab_file", Idle),
    ("vocab_size", Idle),
];

/// `special_tokens_map.json`, as `tokenization_utils_base.py` of transformers 5.19 reads it; and tokens of the model's own.
pub const SPECIAL_TOKENS_MAP: &Table = &[
    ("additional_special_tokens", Used),
    ("bos_token", Used),
    ("cls_token", Used),
    ("eos_token", Used),
    ("extra_special_tokens", Used),
    ("mask_token", Used),
    ("pad_token", Used),
    ("sep_token", Used),
    ("unk_token", Used),
];

/// The top level of `tokenizer.json`: `serialization.rs` of the `tokenizers` crate. Truncation and padding are for
/// `data.max_length` and batches to decide.
pub const TOKENIZER: &Table = &[
    ("added_tokens", Used),
    ("decoder", Used),
    ("model", Used),
    ("normalizer", Used),
    ("padding", Idle),
    ("post_processor", Used),
    ("pre_tokenizer", Used),
    ("truncation", Idle),
    ("version", Used),
];

/// `generation_config.json`: `GenerationConfig` of transformers 5.19 and what version 4 wrote. What only says how, how
/// fast or with what returned is idle; what would draw other tokens, or ask for more or fewer, is told.
pub const GENERATION: &Table = &[
    ("_from_model_config", Idle),
    ("assistant_confidence_threshold", Idle),
    ("assistant_early_exit", Idle),
    ("assistant_lookbehind", Idle),
    ("bad_words_ids", Told),
    ("begin_suppress_tokens", Told),
    ("bos_token_id", Idle),
    ("cache_config", Idle),
    ("cache_implementation", Idle),
    ("chat_format", Idle),
    ("compile_config", Idle),
    ("constraints", Refused),
    ("continuous_batching_config", Idle),
    ("custom_generate", Refused),
    ("decoder_start_token_id", Idle),
    ("disable_compile", Idle),
    // Of beams alone, which are told of by their number.
    ("diversity_penalty", Idle),
    ("do_sample", Used),
    ("dola_layers", Told),
    ("early_stopping", Idle),
    ("encoder_no_repeat_ngram_size", Idle),
    ("encoder_repetition_penalty", Told),
    ("eos_token_id", Used),
    ("epsilon_cutoff", Told),
    ("eta_cutoff", Told),
    ("exponential_decay_length_penalty", Told),
    ("force_words_ids", Refused),
    ("forced_bos_token_id", Told),
    ("forced_decoder_ids", Refused),
    ("forced_eos_token_id", Told),
    ("guidance_scale", Told),
    ("is_assistant", Idle),
    ("length_penalty", Idle),
    ("low_memory", Idle),
    ("max_length", Told),
    ("max_matching_ngram_size", Idle),
    ("max_new_tokens", Told),
    ("max_time", Told),
    ("max_window_size", Idle),
    ("min_length", Told),
    ("min_new_tokens", Told),
    ("min_p", Told),
    ("no_repeat_ngram_size", Told),
    ("num_assistant_tokens", Idle),
    ("num_assistant_tokens_schedule", Idle),
    ("num_beam_groups", Idle),
    ("num_beams", Told),
    ("num_return_sequences", Told),
    ("output_attentions", Idle),
    ("output_hidden_states", Idle),
    ("output_logits", Idle),
    ("output_scores", Idle),
    ("pad_token_id", Idle),
    ("penalty_alpha", Told),
    ("prefill_chunk_size", Idle),
    ("prompt_lookup_num_tokens", Idle),
    ("remove_invalid_values", Idle),
    ("renormalize_logits", Idle),
    ("repetition_penalty", Used),
    ("return_dict_in_generate", Idle),
    ("sequence_bias", Told),
    ("stop_strings", Used),
    ("suppress_tokens", Told),
    ("target_lookbehind", Idle),
    ("temperature", Used),
    ("token_healing", Told),
    ("top_h", Told),
    ("top_k", Used),
    ("top_p", Used),
    ("transformers_version", Idle),
    ("trust_remote_code", Idle),
    ("typical_p", Told),
    ("use_cache", Idle),
    ("use_mtp", Idle),
    ("watermarking_config", Told),
];

/// `chat_template.json`, which holds one key.
pub const CHAT_TEMPLATE: &Table = &[("chat_template", Used)];

/// The index of several weights files; `metadata` is looked at by itself.
pub const INDEX: &Table = &[("metadata", Used), ("weight_map", Used)];

/// `metadata` of the index: sizes come from the headers, and a `total_size` that disagrees is told.
pub const INDEX_METADATA: &Table = &[("format", Idle), ("total_parameters", Idle), ("total_size", Used)];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ALL: [(&str, &Table); 8] = [
        ("config.json", CONFIG),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
        ("special_tokens_map.json", SPECIAL_TOKENS_MAP),
        ("tokenizer.json", TOKENIZER),
        ("generation_config.json", GENERATION),
        ("chat_template.json", CHAT_TEMPLATE),
        ("index", INDEX),
        ("metadata", INDEX_METADATA),
    ];

    #[test]
    fn tables_are_sorted_and_name_each_key_once() {
        for (file, table) in ALL {
            assert!(table.windows(2).all(|w| w[0].0 < w[1].0), "{file}");
        }
    }

    #[test]
    fn every_key_is_used_refused_or_told_and_off_is_silent() {
        for (file, table) in ALL {
            for (key, fate) in table {
                let with = |value: Value| check(file, table, &Map::from_iter([((*key).to_string(), value)]));
                for off in [Value::Null, json!(false), json!(0.0), json!(""), json!([]), json!({})] {
                    assert!(with(off).unwrap().is_none(), "{file} {key}");
                }
                let told = with(json!("x"));
                match fate {
                    Fate::Used | Fate::Idle => assert!(told.unwrap().is_none(), "{file} {key}"),
                    Fate::Refused => assert!(told.unwrap_err().to_string().contains(&format!("{file}: '{key}'"))),
                    Fate::Told => assert!(told.unwrap().unwrap().contains(&format!("'{key}'"))),
                }
            }
            let unknown = Map::from_iter([("zz_new".into(), json!(1))]);
            assert_eq!(
                check(file, table, &unknown).unwrap().unwrap(),
                format!("{file} has keys that aren't used here: 'zz_new'")
            );
        }
    }
}
