//! Imports of small GGUF files: names, shapes, row order, values per type, tokenizer, atomicity.

use super::*;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::{self, Family, Role, RopeScaling};
use crate::support::fixture::decode;
use crate::support::gguf::Gguf as Make;

struct Imported {
    dir: tempfile::TempDir,
    c: Checkpoint,
}

impl Imported {
    fn of(make: &Make) -> Imported {
        let dir = tempfile::tempdir().unwrap();
        make.write(&dir.path().join("m.gguf"));
        let to =
            import(&dir.path().join("m.gguf"), &dir.path().join("out"), &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
        Imported { c: checkpoint::open(&to).unwrap(), dir }
    }
    fn values(&self, name: &str) -> Vec<f32> {
        let t = self.c.tensors.iter().find(|t| t.name == name).unwrap();
        let bytes = std::fs::read(&self.c.files[t.file].path).unwrap();
        decode(t.dtype.name(), &bytes[t.offset as usize..(t.offset + t.bytes) as usize])
    }
    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.dir.path().join("out").join(name)).unwrap()).unwrap()
    }
    fn tokenizer(&self) -> tokenizers::Tokenizer {
        tokenizers::Tokenizer::from_file(self.dir.path().join("out/tokenizer.json")).unwrap()
    }
    fn ids(&self, text: &str) -> Vec<u32> {
        self.tokenizer().encode(text, true).unwrap().get_ids().to_vec()
    }
}

#[track_caller]
fn refused(make: &Make, words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    make.write(&dir.path().join("m.gguf"));
    let e = import(&dir.path().join("m.gguf"), &dir.path().join("out"), &mut |_| {}).unwrap_err().to_string();
    for word in words {
        assert!(e.contains(word), "'{word}' is not in: {e}");
    }
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["m.gguf"], "nothing may be left behind");
}

/// The row number that each of the first values of a row shows.
fn rows(values: &[f32], cols: usize) -> Vec<usize> {
    values.chunks(cols).map(|row| (row[0] * 64.0).round() as usize).collect()
}

#[test]
fn llama_rows_go_back_to_rotate_half_order() {
    let m = Imported::of(&Make::tiny("llama"));
    assert_eq!((m.c.arch.family, m.c.arch.tied, m.c.tensors.len()), (Family::Llama, true, 11));
    // Per head of 16: row half·8 + pair comes from 2·pair + half.
    let head = |h: usize| (0..16).map(move |r| h * 16 + 2 * (r % 8) + r / 8);
    let want: Vec<usize> = (0..2).flat_map(head).collect();
    assert_eq!(rows(&m.values("model.layers.0.self_attn.q_proj.weight"), 32), want);
    assert_eq!(rows(&m.values("model.layers.0.self_attn.k_proj.weight"), 32), head(0).collect::<Vec<_>>());
    assert_eq!(rows(&m.values("model.layers.0.self_attn.v_proj.weight"), 32), (0..16).collect::<Vec<_>>());
    assert_eq!(rows(&m.values("model.layers.0.self_attn.o_proj.weight"), 32), (0..32).collect::<Vec<_>>());
    assert_eq!(rows(&m.values("model.norm.weight"), 1), (0..32).collect::<Vec<_>>());
}

#[test]
fn a_permuted_bias_follows_its_rows() {
    let bias: Vec<f32> = (0..32).map(|i| i as f32 / 64.0).collect();
    let make = Make::tiny("llama").f32("blk.0.attn_q.bias", &[32], &bias);
    let m =
        Imported::of(&make.f32("blk.0.attn_k.bias", &[16], &bias[..16]).f32("blk.0.attn_v.bias", &[16], &bias[..16]));
    let got = m.values("model.layers.0.self_attn.q_proj.bias");
    assert_eq!(rows(&got, 1), rows(&m.values("model.layers.0.self_attn.q_proj.weight"), 32));
    assert_eq!(m.json("config.json")["attention_bias"], true);
}

#[test]
fn qwen_rows_stay_and_its_own_tensors_are_named() {
    for (arch, family, extra) in [("qwen2", Family::Qwen2, Role::KBias), ("qwen3", Family::Qwen3, Role::KNorm)] {
        let m = Imported::of(&Make::tiny(arch).text("tokenizer.ggml.pre", "qwen2"));
        assert_eq!(m.c.arch.family, family);
        assert_eq!(rows(&m.values("model.layers.0.self_attn.q_proj.weight"), 32), (0..32).collect::<Vec<_>>());
        assert_eq!(m.c.block_tensor(0, extra).unwrap().shape, [16]);
        assert!(m.c.arch.windows.iter().all(Option::is_none));
    }
}

#[test]
fn every_type_decodes_to_its_known_values() {
    // One row of 32 per type; d = 0.5, m = -2 where there is one.
    let nibbles: Vec<u8> = (0..16).map(|j| j | (15 - j) << 4).collect();
    let low: Vec<f32> = (0..16).map(|j| j as f32).collect();
    let q: Vec<f32> = low.iter().copied().chain(low.iter().rev().copied()).collect();
    let halves = |v: f32| half::f16::from_f32(v).to_le_bytes();
    let q4_0 = [halves(0.5).to_vec(), nibbles.clone()].concat();
    let q4_1 = [halves(0.5).to_vec(), halves(-2.0).to_vec(), nibbles].concat();
    let q8_0 = [halves(0.25).to_vec(), (0..32).map(|j: u8| j.wrapping_mul(8)).collect()].concat();
    let f16: Vec<u8> = (0..32).flat_map(|j| halves(j as f32 / 8.0)).collect();
    let bf16: Vec<u8> = (0..32).flat_map(|j| half::bf16::from_f32(j as f32 / 8.0).to_le_bytes()).collect();
    let eighths: Vec<f32> = (0..32).map(|j| j as f32 / 8.0).collect();
    let signed: Vec<f32> = (0..32).map(|j: u8| 0.25 * f32::from(j.wrapping_mul(8).cast_signed())).collect();
    let cases = [
        (2, q4_0, q.iter().map(|x| 0.5 * (x - 8.0)).collect::<Vec<f32>>()),
        (3, q4_1, q.iter().map(|x| 0.5 * x - 2.0).collect()),
        (8, q8_0, signed),
        (1, f16, eighths.clone()),
        (30, bf16, eighths),
    ];
    for (kind, row, want) in cases {
        let m = Imported::of(&Make::tiny("llama").tensor("blk.0.attn_v.weight", kind, &[16, 32], row.repeat(16)));
        let got = m.values("model.layers.0.self_attn.v_proj.weight");
        assert_eq!(got.len(), 512);
        assert!(got.chunks(32).all(|r| r == want), "type {kind}: {:?} {want:?}", &got[..32]);
    }
}

#[test]
fn the_config_says_what_the_file_says() {
    let m = Imported::of(&Make::tiny("llama"));
    let c = m.json("config.json");
    assert_eq!(c["rms_norm_eps"], 1e-5, "three digits of the stored f32");
    assert_eq!((c["rope_theta"].as_f64(), c["head_dim"].as_u64()), (Some(100_000.0), Some(16)));
    assert_eq!((c["vocab_size"].as_u64(), c["max_position_embeddings"].as_u64()), (Some(260), Some(128)));
    assert_eq!(c["torch_dtype"], "float16");
    assert_eq!(m.c.arch.special.eos, [258]);
    assert!(m.c.notes.is_empty(), "{:?}", m.c.notes);
    let t = m.json("tokenizer_config.json");
    assert_eq!(t["chat_template"], crate::support::fixture::CHATML);
    assert_eq!((&t["bos_token"], &t["eos_token"]), (&json!("<|im_start|>"), &json!("<|im_end|>")));
    let untied = Imported::of(&Make::tiny("llama").f32("output.weight", &[260, 32], &[0.5; 260 * 32]));
    assert!(!untied.c.arch.tied && untied.c.head.is_some());
}

#[test]
fn the_tokenizer_splits_as_its_family_does() {
    // Byte-level ids are bytes; 256 is the merge "he".
    let smollm = Imported::of(&Make::tiny("llama"));
    assert_eq!(smollm.ids("he<|im_end|>"), [256, 258]);
    assert_eq!(smollm.ids("<think>"), [259]);
    let t = smollm.tokenizer();
    assert_eq!(t.decode(&[256, 32, 195, 169], false).unwrap(), "he é");
    let pieces = |m: &Imported, text: &str| -> Vec<String> {
        use tokenizers::tokenizer::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};
        let t = m.tokenizer();
        let mut s = PreTokenizedString::from(text);
        t.get_pre_tokenizer().unwrap().pre_tokenize(&mut s).unwrap();
        s.get_splits(OffsetReferential::Original, OffsetType::Byte).iter().map(|(p, _, _)| p.to_string()).collect()
    };
    let with = |pre: &str| Imported::of(&Make::tiny("llama").text("tokenizer.ggml.pre", pre));
    assert_eq!(pieces(&smollm, "a 1234's"), ["a", "Ġ", "1", "2", "3", "4", "'s"]);
    assert_eq!(pieces(&with("llama-bpe"), "a 1234'S"), ["a", "Ġ", "123", "4", "'S"]);
    assert_eq!(pieces(&with("qwen2"), "a 1234'S"), ["a", "Ġ", "1", "2", "3", "4", "'S"]);
    assert_eq!(pieces(&with("gpt-2"), "a 1234's"), ["a", "Ġ1234", "'s"]);
    assert_eq!(with("llama-bpe").ids("he"), [257, 256], "llama-bpe begins with bos unless told otherwise");
    let told = Make::tiny("llama").text("tokenizer.ggml.pre", "llama-bpe").flag("tokenizer.ggml.add_bos_token", false);
    assert_eq!(Imported::of(&told).ids("he"), [256]);
}

#[test]
fn llama3_factors_become_a_rope_rule() {
    let rope = |factor| crate::checkpoint::Rope {
        theta: 100_000.0,
        scaling: RopeScaling::Llama3 {
            factor,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192.0,
        },
    };
    let plain = crate::checkpoint::Rope { theta: 100_000.0, scaling: RopeScaling::None }.inv_freq(16);
    let factors: Vec<f32> = plain.iter().zip(rope(8.0).inv_freq(16)).map(|(p, s)| (p / s) as f32).collect();
    assert_eq!((factors[0], factors[7]), (1.0, 8.0));
    let m = Imported::of(&Make::tiny("llama").f32("rope_freqs.weight", &[8], &factors));
    assert_eq!(m.c.arch.rope, rope(8.0));
    let mut odd = factors;
    odd[5] *= 1.5;
    refused(&Make::tiny("llama").f32("rope_freqs.weight", &[8], &odd), &["rope_freqs.weight"]);
    let yarn = Make::tiny("llama").text("llama.rope.scaling.type", "yarn");
    refused(&yarn, &["rope scaling 'yarn'"]);
    let linear = Make::tiny("llama").text("llama.rope.scaling.type", "linear").float("llama.rope.scaling.factor", 4.0);
    assert_eq!(Imported::of(&linear).c.arch.rope.scaling, RopeScaling::Linear { factor: 4.0 });
}

#[test]
fn what_cannot_be_imported_is_named_and_leaves_nothing() {
    refused(&Make::tiny("gemma3"), &["architecture 'gemma3'", "llama, qwen2, qwen3"]);
    refused(&Make::tiny("llama").int("llama.expert_count", 8), &["mixture of experts"]);
    refused(&Make::tiny("llama").text("tokenizer.ggml.model", "llama"), &["tokenizer 'llama'", "gpt2"]);
    refused(&Make::tiny("llama").text("tokenizer.ggml.pre", "tekken"), &["pre-tokenizer 'tekken'", "smollm"]);
    refused(&Make::tiny("llama").without("llama.block_count"), &["'llama.block_count' is missing"]);
    refused(&Make::tiny("llama").int("llama.block_count", 2), &["9 tensors are missing", "model.layers.1."]);
    refused(&Make::tiny("llama").f32("blk.0.what.weight", &[1], &[0.0]), &["'blk.0.what.weight'", "no place"]);
    refused(&Make::tiny("llama").int("llama.rope.dimension_count", 8), &["rope.dimension_count"]);
    refused(&Make::tiny("llama").texts("tokenizer.ggml.merges", &["h e x"]), &["merge 0", "not two tokens"]);
    refused(&Make::tiny("llama").int("tokenizer.ggml.eos_token_id", 260), &["eos_token_id' is 260", "260 tokens"]);
    refused(&Make::tiny("llama").tensor("blk.0.attn_v.weight", 12, &[16, 256], vec![0; 2304]), &["Q4_K", "attn_v"]);
    let huge = [1e6f32; 512];
    refused(
        &Make::tiny("llama").f32("blk.0.attn_v.weight", &[16, 32], &huge),
        &["'blk.0.attn_v.weight'", "1000000", "F16"],
    );
    refused(&Make::tiny("llama").f32("blk.0.attn_v.weight", &[17, 32], &[0.0; 544]), &["v_proj", "[17, 32]"]);
}

#[test]
fn an_existing_folder_is_only_taken_when_empty() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("m.gguf"), dir.path().join("a/out"));
    Make::tiny("llama").write(&from);
    std::fs::create_dir_all(&to).unwrap();
    // What a killed import of the same folder left goes away with the next.
    std::fs::create_dir(dir.path().join("a/.out.importing-4294967295")).unwrap();
    let mut stages = Vec::new();
    import(&from, &to, &mut |s| stages.push(s)).unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("a")).unwrap().count(), 1);
    assert!(stages.windows(2).all(|w| w[0].done <= w[1].done));
    let last = stages.last().unwrap();
    assert_eq!((last.done, last.unit.as_str()), (last.total, "bytes"));
    let e = import(&from, &to, &mut |_| {}).unwrap_err().to_string();
    assert!(e.contains("not empty"), "{e}");
    assert!(import(&from, &from, &mut |_| {}).unwrap_err().to_string().contains("is a file"));
    assert!(checkpoint::open(&to).is_ok());
}
