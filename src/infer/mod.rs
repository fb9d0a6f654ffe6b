//! Generation with a key/value cache, streamed when the model must be: every token is one sweep over the blocks.

mod choose;

pub use choose::Choice;

use crate::checkpoint::Arch;
use crate::error::{Error, Result};
use crate::event::Phase;
use crate::model::attention::KvCache;
use crate::model::rope::RopeTable;
use crate::model::visit::{Streamed, logits};
use crate::model::{Adapter, BlockContext, Kernels, Residents, block_forward};
use crate::plan::schedule::Habit;
use crate::stream::Streamer;
use choose::{choose, penalised};
use std::ops::ControlFlow;
use tch::{Device, Kind, Tensor};

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
    penalty: f64,
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
        Generator { arch, residents, adapter, streamer, kind, device, caches, position: 0, penalty: 1.0 }
    }

    /// With tokens that stand in the text made less likely by `penalty` (1 = not; see [`Choice`]).
    #[must_use]
    pub fn with_repetition_penalty(self, penalty: f64) -> Generator {
        Generator { penalty, ..self }
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
        let normed = self.residents.normed(kernels, &last)?;
        let logits = logits(&normed, &self.residents, &mut self.streamer, n, self.kind)?;
        // The trace is the trainer's; here it only must not grow.
        self.streamer.snapshot()?;
        Ok(logits.to_device(Device::Cpu).view([-1]))
    }

    /// Continues `prompt` by up to `max_new` tokens, each handed to `each` as it comes; stops at an id in `stop`,
    /// or where `each` breaks.
    ///
    /// # Errors
    /// As [`Generator::feed`], or what `each` returns.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        max_new: usize,
        stop: &[u32],
        choice: Choice,
        each: &mut dyn FnMut(u32) -> Result<ControlFlow<()>>,
    ) -> Result<Vec<u32>> {
        let (mut out, mut seen) = (Vec::new(), prompt.to_vec());
        let mut logits = self.feed(prompt)?;
        while out.len() < max_new {
            let id = choose(&penalised(&logits, &seen, self.penalty)?, choice, out.len() as u64)?;
            if stop.contains(&id) {
                break;
            }
            out.push(id);
            seen.push(id);
            if each(id)?.is_break() {
                break;
            }
            if out.len() < max_new {
                logits = self.feed(&[id])?;
            }
        }
        Ok(out)
    }
}
