//! Generation with a key/value cache, streamed when the model must be: every token is one sweep over the blocks.

use crate::checkpoint::Arch;
use crate::error::{Error, Result};
use crate::event::Phase;
use crate::model::attention::KvCache;
use crate::model::dropout::{mix, uniform};
use crate::model::rope::RopeTable;
use crate::model::visit::{Streamed, logits};
use crate::model::{Adapter, BlockContext, Kernels, Residents, block_forward};
use crate::plan::schedule::Habit;
use crate::stream::Streamer;
use tch::{Device, Kind, Tensor};

/// How the next token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Choice {
    /// The likeliest.
    Greedy,
    /// Drawn from the softmax at a temperature, among the `top_p` mass; seeded.
    Sample {
        /// Divides the logits.
        temperature: f64,
        /// Nucleus mass, 0..=1.
        top_p: f64,
        /// Seed.
        seed: u64,
    },
}

/// A model ready to generate.
pub struct Generator {
    arch: Arch,
    residents: Residents,
    adapter: Option<Adapter>,
    streamer: Streamer,
    kind: Kind,
    device: Device,
    caches: Vec<KvCache>,
    position: usize,
}

impl Generator {
    /// Joins the parts; they must be of one checkpoint and device.
    #[must_use]
    pub fn new(
        arch: Arch,
        residents: Residents,
        adapter: Option<Adapter>,
        streamer: Streamer,
        kind: Kind,
    ) -> Generator {
        let device = streamer.device();
        let caches = (0..arch.n_layers).map(|_| KvCache::default()).collect();
        Generator { arch, residents, adapter, streamer, kind, device, caches, position: 0 }
    }

    /// Feeds `ids` after what has been seen and returns the logits `[V]` (f32, on the host) of the last position.
    ///
    /// # Errors
    /// A read, copy or kernel failed; an id outside the vocabulary; no id.
    pub fn feed(&mut self, ids: &[u32]) -> Result<Tensor> {
        if ids.is_empty() {
            return Err(Error::usage("there is nothing to continue: the prompt has no token"));
        }
        let _no_grad = tch::no_grad_guard();
        let kernels = Kernels::of(self.device);
        let ids: Vec<i64> = ids.iter().map(|&i| i64::from(i)).collect();
        let rope = RopeTable::new(&self.arch, self.position, ids.len(), self.kind, self.device);
        let mut x = self.residents.embed(&Tensor::from_slice(&ids).view([1, -1]))?;
        // Two sweeps ahead, so that the next token's first blocks come while this one's head computes.
        let n = self.arch.n_layers;
        let habit = Habit::of(1, 0, self.streamer.is_split());
        let sweep = || habit.sweep(n, self.streamer.head_pieces());
        let two = sweep().into_iter().chain(sweep()).collect::<Vec<_>>();
        self.streamer.forget()?;
        self.streamer.extend(two);
        for block in 0..n {
            self.streamer.begin(Phase::Eval, block)?;
            let context = BlockContext {
                arch: &self.arch,
                kernels,
                rope: &rope,
                block,
                adapter: self.adapter.as_ref().map(|a| a.block(block, None)),
                tile: 0,
                needs_input: false,
            };
            let mut weights = Streamed::forward(&mut self.streamer, block, self.kind, habit);
            weights.begin(0, true)?;
            x = block_forward(&x, &mut weights, &context, Some(&mut self.caches[block]))?;
        }
        self.position += ids.len();
        let last = x.select(1, -1);
        let normed = kernels.rms_norm(&last, &self.residents.norm, self.arch.norm_eps)?;
        let logits = logits(&normed, self.residents.head.as_ref(), &mut self.streamer, n, self.kind)?;
        // The trace is the trainer's; here it only must not grow.
        self.streamer.snapshot()?;
        Ok(logits.to_device(Device::Cpu).view([-1]))
    }

    /// Continues `prompt` by up to `max_new` tokens, each handed to `each` as it comes; stops after an id in `stop`.
    ///
    /// # Errors
    /// As [`Generator::feed`], or what `each` returns.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        max_new: usize,
        stop: &[u32],
        choice: Choice,
        each: &mut dyn FnMut(u32) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let mut out = Vec::new();
        let mut logits = self.feed(prompt)?;
        while out.len() < max_new {
            let id = choose(&logits, choice, out.len() as u64)?;
            if stop.contains(&id) {
                break;
            }
            out.push(id);
            each(id)?;
            if out.len() < max_new {
                logits = self.feed(&[id])?;
            }
        }
        Ok(out)
    }
}

/// The next id from logits `[V]`; `at` counts the draws.
fn choose(logits: &Tensor, choice: Choice, at: u64) -> Result<u32> {
    match choice {
        Choice::Greedy => Ok(logits.argmax(0, false).int64_value(&[]) as u32),
        Choice::Sample { temperature, top_p, seed } => {
            let (probabilities, ids) = (logits / temperature.max(1e-4)).softmax(0, Kind::Double).sort(0, true);
            let (p, ids) = (Vec::<f64>::try_from(&probabilities)?, Vec::<i64>::try_from(&ids)?);
            let mut mass = 0.0;
            let mut kept = 0;
            while kept < p.len() && (kept == 0 || mass < top_p) {
                mass += p[kept];
                kept += 1;
            }
            let total: f64 = p[..kept].iter().sum();
            let mut left = uniform(mix(seed ^ 0x6765_6E65_7261_7465), at) * total;
            let i = p[..kept].iter().position(|x| {
                left -= x;
                left < 0.0
            });
            Ok(ids[i.unwrap_or(kept - 1)] as u32)
        }
    }
}
