//! LoRA (Hu et al. 2021): y = x·Wᵀ + b + s·(dropout(x)·Aᵀ)·Bᵀ, s = alpha/r or alpha/√r (rsLoRA, Kalajdzievski 2023).
//!
//! All A and B of a model lie in one flat f32 buffer, so the optimizer, the norm and the gradient are one tensor each.
//! The A's of projections that share their input lie one below the other, so that one product serves them all.

use super::delta::{BlockAdapter, GroupView};
use super::dropout;
use crate::checkpoint::adapter::AdapterTensor;
use crate::checkpoint::inventory::PREFIXES;
use crate::checkpoint::{Checkpoint, Role};
use crate::config::LoraSection;
use crate::error::{Error, Result};
use crate::plan::lowest_trainable;
use std::ops::Range;
use tch::{Device, Kind, Tensor};

/// Projections that share their input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// q, k and v, of the normed input.
    Qkv,
    /// o, of what attention gives.
    O,
    /// Gate and up, of the normed middle.
    GateUp,
    /// Down, of the activation.
    Down,
}

impl Group {
    /// In the order of the forward pass, which is [`Role::ALL`]'s.
    pub const ALL: [Group; 4] = [Group::Qkv, Group::O, Group::GateUp, Group::Down];

    /// Its projections.
    #[must_use]
    pub fn roles(self) -> &'static [Role] {
        match self {
            Group::Qkv => &[Role::Q, Role::K, Role::V],
            Group::O => &[Role::O],
            Group::GateUp => &[Role::Gate, Role::Up],
            Group::Down => &[Role::Down],
        }
    }
}

/// One adapted projection and where its A and B lie in the flat buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Block.
    pub block: usize,
    /// Projection.
    pub role: Role,
    /// PEFT module path, e.g. `model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// Input width.
    pub d_in: usize,
    /// Output width.
    pub d_out: usize,
    /// Offset of A `[r, in]`.
    pub a: usize,
    /// Offset of B `[out, r]`.
    pub b: usize,
}

/// The adapter's shape: targets in block order, then by role.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterLayout {
    /// Adapted projections.
    pub targets: Vec<Target>,
    /// Rank.
    pub r: usize,
    /// Scale s.
    pub scale: f64,
    /// Dropout on A's input.
    pub dropout: f64,
    /// All parameters.
    pub len: usize,
    /// Lowest block with an adapter.
    pub lowest: usize,
}

impl AdapterLayout {
    /// Lays out an adapter for `checkpoint` as `config` asks.
    ///
    /// # Errors
    /// A target that no block has, rank 0, a fraction that leaves no block.
    pub fn new(checkpoint: &Checkpoint, config: &LoraSection) -> Result<AdapterLayout> {
        if config.r == 0 {
            return Err(Error::usage("lora.r is 0").next("use at least 1; 8 or 16 are usual"));
        }
        let n = checkpoint.blocks.len();
        let lowest = lowest_trainable(n, config.top_fraction);
        let wanted = |name: &str| config.targets.iter().any(|t| t == name || t == "all-linear");
        for t in &config.targets {
            if t != "all-linear" && !Role::ALL.iter().any(|r| r.lora_target() == Some(t)) {
                return Err(Error::usage(format!("lora.targets: no projection is called '{t}'"))
                    .next("use q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj or all-linear"));
            }
        }
        let mut targets: Vec<Target> = Vec::new();
        let mut at = 0;
        for block in lowest..n {
            for group in Group::ALL {
                let from = targets.len();
                for &role in group.roles() {
                    let name = role.lora_target().expect("groups are of projections");
                    if !wanted(name) {
                        continue;
                    }
                    let tensor = checkpoint
                        .block_tensor(block, role)
                        .ok_or_else(|| Error::checkpoint(format!("block {block} has no {name}")))?;
                    let (d_out, d_in) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
                    let module = checkpoint.module(block, role);
                    targets.push(Target { block, role, module, d_in, d_out, a: at, b: 0 });
                    at += config.r * d_in;
                }
                for t in &mut targets[from..] {
                    // Stacked A's and every B start on 64 elements: 256 bytes.
                    t.b = at.next_multiple_of(64);
                    at = t.b + t.d_out * config.r;
                }
                at = at.next_multiple_of(64);
            }
        }
        if targets.is_empty() {
            return Err(Error::usage("lora.targets matches nothing").next("name at least one projection, e.g. q_proj"));
        }
        let r = config.r as f64;
        let scale = config.alpha / if config.rslora { r.sqrt() } else { r };
        Ok(AdapterLayout { targets, r: config.r, scale, dropout: config.dropout, len: at, lowest })
    }

    /// Trained parameters (padding between tensors not counted).
    #[must_use]
    pub fn params(&self) -> u64 {
        self.targets.iter().map(|t| (self.r * (t.d_in + t.d_out)) as u64).sum()
    }

    /// Indices of the targets of `block`.
    #[must_use]
    pub fn of_block(&self, block: usize) -> Range<usize> {
        let from = self.targets.partition_point(|t| t.block < block);
        let to = self.targets.partition_point(|t| t.block <= block);
        from..to
    }

    /// Fresh parameters: A uniform in ±1/√in (PEFT's Kaiming with a = √5), B zero. Seeded, equal on every machine.
    #[must_use]
    pub fn init(&self, seed: u64) -> Vec<f32> {
        let mut flat = vec![0.0; self.len];
        for (i, t) in self.targets.iter().enumerate() {
            let key = dropout::mix(seed.wrapping_add(0x4C6F_5241).wrapping_add(dropout::mix(i as u64)));
            let bound = 1.0 / (t.d_in as f64).sqrt();
            for (j, x) in flat[t.a..t.a + self.r * t.d_in].iter_mut().enumerate() {
                *x = ((2.0 * dropout::uniform(key, j as u64) - 1.0) * bound) as f32;
            }
        }
        flat
    }

    /// The flat buffer as PEFT's tensors.
    #[must_use]
    pub fn to_peft(&self, flat: &[f32]) -> Vec<AdapterTensor> {
        self.targets
            .iter()
            .flat_map(|t| {
                let key = |ab: &str| format!("base_model.model.{}.lora_{ab}.weight", t.module);
                [
                    AdapterTensor {
                        key: key("A"),
                        shape: vec![self.r, t.d_in],
                        data: flat[t.a..t.a + self.r * t.d_in].to_vec(),
                    },
                    AdapterTensor {
                        key: key("B"),
                        shape: vec![t.d_out, self.r],
                        data: flat[t.b..t.b + t.d_out * self.r].to_vec(),
                    },
                ]
            })
            .collect()
    }

    /// PEFT's tensors as a flat buffer; every one must be there, of the right shape, and no other.
    ///
    /// # Errors
    /// Names the first tensor that is missing, extra or of another shape.
    pub fn from_peft(&self, tensors: &[AdapterTensor]) -> Result<Vec<f32>> {
        let mut flat = vec![0.0; self.len];
        let mut used = 0;
        for t in &self.targets {
            for (ab, at, shape) in [("A", t.a, [self.r, t.d_in]), ("B", t.b, [t.d_out, self.r])] {
                let key = format!("base_model.model.{}.lora_{ab}.weight", t.module);
                let found = tensors.iter().find(|x| in_decoder(&x.key) == in_decoder(&key)).ok_or_else(|| {
                    Error::checkpoint(format!("the adapter has no '{key}'"))
                        .next("it belongs to another base or other targets")
                })?;
                if found.shape != shape {
                    return Err(Error::checkpoint(format!("'{key}' is {:?}, not {shape:?}", found.shape))
                        .next("the adapter belongs to another base or rank"));
                }
                flat[at..at + found.data.len()].copy_from_slice(&found.data);
                used += 1;
            }
        }
        if used != tensors.len() {
            let extra =
                tensors.iter().find(|x| !self.targets.iter().any(|t| x.key.contains(&format!("{}.lora_", t.module))));
            let name = extra.map_or("?", |x| x.key.as_str());
            return Err(Error::checkpoint(format!(
                "the adapter has {} tensors, {used} expected; '{name}' is extra",
                tensors.len()
            ))
            .next("match lora.targets and lora.top_fraction to the adapter"));
        }
        Ok(flat)
    }
}

/// What follows the decoder's prefix in a PEFT key. Adapters of the same base are named by the class they were made
/// with, which changed between versions of transformers; the place in the decoder did not.
fn in_decoder(key: &str) -> &str {
    let module = key.strip_prefix("base_model.model.").unwrap_or(key);
    let inside = |(prefix, _): &(&str, _)| module.strip_prefix(prefix).filter(|m| m.starts_with("layers."));
    PREFIXES.iter().find_map(inside).unwrap_or(key)
}

/// The adapter on a device: f32 masters, and what blocks compute with.
#[derive(Debug)]
pub struct Adapter {
    /// Its shape.
    pub layout: AdapterLayout,
    /// f32 masters `[len]`.
    pub flat: Tensor,
    /// The masters rounded to the compute type; the same storage as `flat` when that is f32.
    compute: Tensor,
    /// Views of `compute`, by block from the lowest trainable one.
    views: Vec<Vec<GroupView>>,
}

impl Adapter {
    /// Puts `flat` on `device` for computing in `kind`.
    #[must_use]
    pub fn new(layout: AdapterLayout, flat: &[f32], kind: Kind, device: Device) -> Adapter {
        let flat = Tensor::from_slice(flat).to_device(device);
        let compute = flat.to_kind(kind);
        let last = layout.targets.last().map_or(layout.lowest, |t| t.block);
        let views = (layout.lowest..=last)
            .map(|block| GroupView::of_block(&layout.targets[layout.of_block(block)], layout.r, &compute))
            .collect();
        Adapter { layout, flat, compute, views }
    }

    /// Rounds the masters to the compute type again, after an update.
    pub fn refresh(&mut self) {
        if self.compute.data_ptr() != self.flat.data_ptr() {
            // In place: the views stay.
            self.compute.copy_(&self.flat);
        }
    }

    /// The adapted projections of `block`; `mask` is seed, step and micro-batch where dropout is on.
    #[must_use]
    pub fn block(&self, block: usize, mask: Option<(u64, u64, usize)>) -> BlockAdapter<'_> {
        let groups = block.checked_sub(self.layout.lowest).and_then(|i| self.views.get(i));
        BlockAdapter {
            groups: groups.map_or(&[], Vec::as_slice),
            block,
            scale: self.layout.scale,
            dropout: if mask.is_some() { self.layout.dropout } else { 0.0 },
            mask: mask.unwrap_or_default(),
        }
    }

    /// The flat f32 values, on the host.
    ///
    /// # Errors
    /// Earlier work on the device failed.
    pub fn to_host(&self) -> Result<Vec<f32>> {
        Ok(Vec::<f32>::try_from(&self.flat.to_device(Device::Cpu))?)
    }
}
