//! The header parser against hostile bytes.

use super::*;
use crate::support::fixture::{Raw, Tensor, safetensors};
use proptest::prelude::*;
use std::path::Path;

fn parse_file(bytes: &[u8]) -> Result<Header> {
    let path = Path::new("x.safetensors");
    let n = header_length(path, &bytes[..bytes.len().min(1024)], bytes.len() as u64)?;
    parse(path, &bytes[8..8 + usize::try_from(n).unwrap()], bytes.len() as u64)
}

fn file_with(json: &str, data: usize) -> Vec<u8> {
    [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &vec![0; data]].concat()
}

#[track_caller]
fn refused(json: &str, data: usize, words: &[&str]) {
    let e = parse_file(&file_with(json, data)).unwrap_err().to_string();
    for word in words {
        assert!(e.contains(word), "'{word}' is not in: {e}");
    }
}

#[test]
fn a_good_header_is_read_in_offset_order() {
    let json = r#"{"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[8,12]},"a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}"#;
    let h = parse_file(&file_with(json, 12)).unwrap();
    assert_eq!(h.data_start, 8 + json.len() as u64);
    assert_eq!(h.metadata["format"], "pt");
    assert_eq!((h.tensors[0].name.as_str(), &h.tensors[0].dtype, h.tensors[0].end), ("a", &Dtype::F64, 8));
    assert_eq!((h.tensors[1].name.as_str(), &h.tensors[1].dtype), ("b", &Dtype::BF16));
    assert!(parse_file(&file_with("{}", 0)).unwrap().tensors.is_empty());
    assert!(parse_file(&file_with(r#"{"__metadata__":null}"#, 0)).unwrap().metadata.is_empty());
}

#[test]
fn sub_byte_types_count_in_bits_and_unknown_types_are_kept() {
    let one = |dtype: &str, shape: &str, end: u64| {
        format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    let h = parse_file(&file_with(&one("F4", "[3,2]", 3), 3)).unwrap();
    assert_eq!(h.tensors[0].dtype, Dtype::Other("F4".into(), 4));
    refused(&one("F4", "[3]", 1), 1, &["takes 2 bytes", "hold 1"]);
    refused(&one("F6_E2M3", "[3]", 2), 2, &["'t'"]);
    let h = parse_file(&file_with(&one("Q9", "[3]", 7), 7)).unwrap();
    assert_eq!(h.tensors[0].dtype, Dtype::Other("Q9".into(), 0));
    // An unknown type cannot make element counts explode.
    refused(&one("Q9", "[9223372036854775807]", 7), 7, &["can't lie in"]);
    refused(&one("F32", "[4611686018427387905]", 4), 4, &["64 bits"]);
    refused(&one("F32", "[1099511627776,1099511627776,0]", 0), 0, &["64 bits"]);
}

#[test]
fn duplicate_names_are_refused() {
    let t = r#"{"dtype":"F32","shape":[0],"data_offsets":[0,0]}"#;
    refused(&format!(r#"{{"a":{t},"a":{t}}}"#), 0, &["'a' twice"]);
    refused(r#"{"__metadata__":{},"__metadata__":{}}"#, 0, &["__metadata__", "twice"]);
    refused(r#"{"a":{"dtype":"F32","shape":[0],"shape":[1],"data_offsets":[0,0]}}"#, 0, &["'a'", "duplicate field"]);
}

#[test]
fn malformed_entries_are_named() {
    refused(r#"{"a":7}"#, 0, &["'a'", "line 1"]);
    refused(r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#, 4, &["'a'", "-1"]);
    refused(r#"{"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}"#, 4, &["'a'"]);
    refused(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}}"#, 4, &["'a'"]);
    refused(r#"{"__metadata__":{"n":1}}"#, 0, &["__metadata__"]);
    refused("[]       ", 0, &["does not begin with '{'"]);
    refused(r#"{"a\u001b[2J":7}"#, 0, &["a\\u{1b}[2J"]);
    let deep = format!(r#"{{"a":{}"#, "[".repeat(100_000));
    refused(&deep, 0, &["not valid"]);
}

#[test]
fn a_range_inside_another_tensor_is_an_overlap_even_when_empty() {
    let json = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}}"#;
    refused(json, 8, &["'a' [0, 8]", "'b' [4, 4]", "overlap"]);
    let json = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551611,18446744073709551615]}}"#;
    refused(json, 4, &["18446744073709551611", "no tensor"]);
}

fn some_tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let dtype = prop::sample::select(vec!["BF16", "F32", "F8_E4M3", "I64"]);
    let tensor = (dtype, prop::collection::vec(0u64..5, 0..4));
    prop::collection::vec(tensor, 0..6).prop_map(|all| {
        let named = |(i, (dtype, shape)): (usize, (&str, Vec<u64>))| Tensor::new(format!("t{i}"), dtype, &shape);
        all.into_iter().enumerate().map(named).collect()
    })
}

proptest! {
    #[test]
    fn what_the_reference_library_accepts_is_accepted_alike(tensors in some_tensors()) {
        let bytes = safetensors(&tensors, &Raw::default());
        let ours = parse_file(&bytes).unwrap();
        let theirs = ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
        prop_assert_eq!(ours.tensors.len(), theirs.len());
        for t in &ours.tensors {
            let view = theirs.tensor(&t.name).unwrap();
            let from = usize::try_from(ours.data_start + t.begin).unwrap();
            prop_assert_eq!(view.data(), &bytes[from..from + view.data().len()]);
            prop_assert_eq!(view.shape().iter().map(|&d| d as u64).collect::<Vec<_>>(), t.shape.clone());
        }
    }

    #[test]
    fn mutated_files_never_panic_and_never_pass_wrongly(
        tensors in some_tensors(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
        whole in any::<bool>(),
    ) {
        let mut bytes = safetensors(&tensors, &Raw::default());
        for (at, byte) in edits {
            let i = at.index(bytes.len());
            bytes[i] = byte;
        }
        if !whole {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(header) = parse_file(&bytes) {
            // What passes covers the data exactly.
            let sum: u64 = header.tensors.iter().map(|t| t.end - t.begin).sum();
            prop_assert_eq!(header.data_start + sum, bytes.len() as u64);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), n in 0u64..200) {
        let _ = parse_file(&bytes);
        let framed = [&n.to_le_bytes(), b"{".as_slice(), &bytes].concat();
        let _ = parse_file(&framed);
        let _ = parse(Path::new("x"), &bytes, n);
    }

    #[test]
    fn numbers_at_the_edge_never_overflow(
        shape in prop::collection::vec(prop::sample::select(vec![0, 1, 2, 1 << 31, 1 << 32, 1 << 63, u64::MAX]), 0..4),
        begin in prop::sample::select(vec![0, 1, 4, 1 << 63, u64::MAX]),
        end in prop::sample::select(vec![0, 1, 4, 1 << 63, u64::MAX]),
        dtype in prop::sample::select(vec!["F4", "F8_E4M3", "F32", "F64", "WHAT"]),
    ) {
        let json = format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}}}"#);
        let _ = parse_file(&file_with(&json, 4));
        let _ = parse(Path::new("x"), json.as_bytes(), u64::MAX);
    }
}
