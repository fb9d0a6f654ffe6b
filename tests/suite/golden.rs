//! Reads the golden files that `tests/reference/make_golden.py` made with transformers and PEFT.

use blockstream_tui::checkpoint::adapter::AdapterTensor;
use blockstream_tui::data::collate::{Batch, IGNORE};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A tensor of a golden file, as f32 or i64 values.
pub struct Values {
    pub shape: Vec<usize>,
    pub f: Vec<f32>,
    pub i: Vec<i64>,
}

pub struct Golden(BTreeMap<String, Values>);

/// Folder of a case.
pub fn dir(case: &str) -> PathBuf {
    // Cargo sets the variable; a test program carried to a GPU machine is started in the repository's root.
    let root = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from);
    root.join("tests/data/golden").join(case)
}

impl Golden {
    pub fn load(case: &str, file: &str) -> Golden {
        let bytes = std::fs::read(dir(case).join(file)).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let (mut f, mut i) = (Vec::new(), Vec::new());
            match view.dtype() {
                safetensors::Dtype::F32 => {
                    f = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                }
                safetensors::Dtype::I64 => {
                    i = view.data().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b)).collect();
                }
                other => panic!("{name}: {other:?}"),
            }
            (name, Values { shape: view.shape().to_vec(), f, i })
        });
        Golden(tensors.collect())
    }

    pub fn get(&self, name: &str) -> &Values {
        self.0.get(name).unwrap_or_else(|| panic!("no '{name}' in {:?}", self.0.keys().collect::<Vec<_>>()))
    }

    pub fn scalar(&self, name: &str) -> f64 {
        f64::from(self.get(name).f[0])
    }

    /// Tensors below `prefix.`, as PEFT's.
    pub fn adapter(&self, prefix: &str) -> Vec<AdapterTensor> {
        self.0
            .iter()
            .filter_map(|(k, v)| {
                let key = k.strip_prefix(&format!("{prefix}."))?;
                Some(AdapterTensor {
                    key: format!("base_model.model.{key}"),
                    shape: v.shape.clone(),
                    data: v.f.clone(),
                })
            })
            .collect()
    }

    /// The rows as one batch: labels shifted, padding cut off the lengths.
    pub fn batch(&self) -> Batch {
        let (ids, labels, mask) = (self.get("input_ids"), self.get("labels"), self.get("attention_mask"));
        let (rows, len) = (ids.shape[0], ids.shape[1]);
        let mut shifted = vec![IGNORE; rows * len];
        for r in 0..rows {
            for s in 0..len - 1 {
                shifted[r * len + s] = labels.i[r * len + s + 1];
            }
        }
        let lengths = (0..rows).map(|r| mask.i[r * len..(r + 1) * len].iter().sum::<i64>() as usize).collect();
        Batch { ids: ids.i.clone(), labels: shifted, rows, len, lengths }
    }

    /// Whether place `i` of the batch holds a real token.
    pub fn is_real(&self, i: usize) -> bool {
        self.get("attention_mask").i[i] == 1
    }
}

/// Fails unless every value is within `tolerance` of the reference, scaled by the reference's largest magnitude.
pub fn assert_close(what: &str, got: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(got.len(), want.len(), "{what}: length");
    let scale = want.iter().fold(1e-6_f32, |m, x| m.max(x.abs()));
    let worst = got
        .iter()
        .zip(want)
        .map(|(g, w)| (g - w).abs())
        .fold(0.0_f32, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) });
    assert!(worst <= tolerance * scale, "{what}: off by {worst:e}, {:e} allowed", tolerance * scale);
}
