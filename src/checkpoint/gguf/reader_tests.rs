//! The GGUF reader against hostile bytes.

use super::*;
use crate::support::gguf::Gguf as Make;
use proptest::prelude::*;

#[track_caller]
fn refused(bytes: &[u8], words: &[&str]) {
    let e = Gguf::parse(bytes).map(|g| g.tensors).unwrap_err();
    for word in words {
        assert!(e.contains(word), "'{word}' is not in: {e}");
    }
}

#[test]
fn values_and_tensors_are_read() {
    let bytes = Make::tiny("llama").flag("f", true).ints("list", &[3, -1]).bytes();
    let g = Gguf::parse(&bytes).unwrap();
    assert_eq!(g.text("general.architecture").unwrap(), Some("llama"));
    assert_eq!(g.int("llama.block_count").unwrap(), Some(1));
    assert_eq!(g.flag("f").unwrap(), Some(true));
    assert_eq!(g.ints("list").unwrap(), [3, -1]);
    assert_eq!(g.texts("tokenizer.ggml.merges").unwrap(), ["h e"]);
    assert_eq!(g.int("absent").unwrap(), None);
    assert!(g.int("general.architecture").unwrap_err().contains("not an integer"));
    let k = g.tensors.iter().find(|t| t.name == "blk.0.attn_k.weight").unwrap();
    assert_eq!((k.dims.as_slice(), k.kind, g.data(k).len()), ([32, 16].as_slice(), Quant::F32, 2048));
    assert_eq!(&g.data(k)[128..132], (1.0f32 / 64.0).to_le_bytes());
    // Version 2 has the same layout.
    let mut two = bytes.clone();
    two[4] = 2;
    assert_eq!(Gguf::parse(&two).unwrap().tensors, g.tensors);
}

#[test]
fn other_files_and_versions_are_told_apart() {
    refused(b"", &["truncated"]);
    refused(b"PK\x03\x04............", &["not a GGUF"]);
    refused(b"GGUF\x01\0\0\0", &["version 1", "2 and 3"]);
    refused(b"GGUF\0\0\0\x03", &["big-endian"]);
    refused(&Make::new().int("split.count", 3).bytes(), &["split GGUF"]);
}

#[test]
fn claimed_counts_and_lengths_are_checked_before_use() {
    let header =
        |tensors: u64, meta: u64| [b"GGUF\x03\0\0\0".as_slice(), &tensors.to_le_bytes(), &meta.to_le_bytes()].concat();
    refused(&header(u64::MAX, 0), &["18446744073709551615 tensors"]);
    refused(&header(1 << 20, 0), &["truncated"]);
    refused(&header(0, 1 << 20), &["truncated"]);
    // A key longer than the file; a list of 2^61 numbers; a text list that claims more texts than there are bytes.
    refused(&[header(0, 1), u64::MAX.to_le_bytes().to_vec()].concat(), &["truncated"]);
    let list = |kind: u32, n: u64| [kind.to_le_bytes().to_vec(), n.to_le_bytes().to_vec()].concat();
    refused(&Make::new().raw("k", 9, list(10, 1 << 61)).bytes(), &["'k'", "past 64 bits"]);
    refused(&Make::new().raw("k", 9, list(4, 1 << 40)).bytes(), &["'k'", "truncated"]);
    refused(&Make::new().raw("k", 9, list(8, u64::MAX)).bytes(), &["'k'", "truncated"]);
    refused(&Make::new().raw("k", 9, list(9, 1)).bytes(), &["'k'", "list of type 9"]);
    refused(&Make::new().raw("k", 77, vec![]).bytes(), &["'k'", "unknown type 77"]);
    refused(&Make::new().raw("k", 7, vec![2]).bytes(), &["'k'", "boolean"]);
}

#[test]
fn tensors_must_lie_in_the_file_apart_and_be_of_a_known_type() {
    let t = |kind, shape: &[u64], data| Make::new().tensor("t\u{1b}", kind, shape, data).bytes();
    refused(&t(12, &[256], vec![0; 144]), &["'t\\u{1b}'", "Q4_K", "supported: F32"]);
    refused(&t(99, &[256], vec![0; 144]), &["number 99"]);
    refused(&t(3, &[2, 16], vec![0; 20]), &["rows of 16", "32"]);
    refused(&t(0, &[5], vec![0; 16]), &["truncated or broken", "takes 20 bytes"]);
    refused(&t(0, &[1 << 40, 1 << 40], vec![]), &["past 64 bits"]);
    refused(&t(0, &[1, 1, 1, 1, 1], vec![0; 4]), &["5 dimensions"]);
    refused(&t(0, &[], vec![0; 4]), &["0 dimensions"]);
    refused(&Make::new().int("general.alignment", 3).bytes(), &["general.alignment"]);
    // Two tensors over the same bytes: the second's offset (the last 8 bytes of its description) is set to 0.
    let both = Make::new().f32("a", &[8], &[0.0; 8]).f32("b", &[8], &[0.0; 8]);
    let mut bytes = both.bytes();
    let at = bytes.windows(8).rposition(|w| w == 32u64.to_le_bytes()).unwrap();
    bytes[at..at + 8].copy_from_slice(&0u64.to_le_bytes());
    refused(&bytes, &["'a'", "'b'", "overlap"]);
    // The same key twice.
    let mut twice = Make::new().int("kk", 1).int("kl", 1).bytes();
    let at = twice.windows(2).position(|w| w == b"kl").unwrap();
    twice[at + 1] = b'k';
    refused(&twice, &["'kk' is there twice"]);
}

proptest! {
    #[test]
    fn mutated_files_never_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        // The description alone is where parsing can go wrong.
        let mut bytes = Make::new()
            .text("general.architecture", "llama")
            .texts("t", &["a", "bc"])
            .ints("i", &[1, 2, 3])
            .f32("x", &[2, 4], &[0.0; 8])
            .f32("y", &[8], &[0.0; 8])
            .bytes();
        for (at, byte) in edits {
            let i = at.index(bytes.len());
            bytes[i] = byte;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(g) = Gguf::parse(&bytes) {
            for t in &g.tensors {
                prop_assert_eq!(g.data(t).len() as u64 * t.kind.block().0, t.dims.iter().product::<u64>() * t.kind.block().1);
            }
            let _ = (g.texts("t"), g.ints("i"), g.text("general.architecture"));
        }
    }
}
