//! A visit: hands the parts of one block to its passes, and gives each back after its last use.

use super::Residents;
use super::kernels::capped;
use super::weights::{self, BlockWeights, GiveBack, Weights};
use crate::checkpoint::Part;
use crate::error::Result;
use crate::plan::schedule::{Habit, PARTS, segment};
use crate::stream::Streamer;
use tch::{Device, Kind, Tensor};

/// The parts of `block`, streamed. Follows the program that [`Habit`] lays out.
pub struct Streamed<'a> {
    streamer: &'a mut Streamer,
    block: usize,
    kind: Kind,
    device: Device,
    split: bool,
    /// Recomputes and goes back.
    back: bool,
    /// Uses still to come in this micro-batch.
    left: [u8; PARTS],
    /// The last micro-batch of the visit is running.
    last: bool,
    /// Parts that are taken.
    taken: [bool; PARTS],
    /// Their tensors.
    held: BlockWeights,
}

impl<'a> Streamed<'a> {
    /// A visit that only runs forward.
    #[must_use]
    pub fn forward(streamer: &'a mut Streamer, block: usize, kind: Kind, habit: Habit) -> Streamed<'a> {
        Streamed::new(streamer, block, kind, habit, false)
    }

    /// A visit that recomputes and goes back.
    #[must_use]
    pub fn backward(streamer: &'a mut Streamer, block: usize, kind: Kind, habit: Habit) -> Streamed<'a> {
        Streamed::new(streamer, block, kind, habit, true)
    }

    fn new(streamer: &'a mut Streamer, block: usize, kind: Kind, habit: Habit, back: bool) -> Streamed<'a> {
        let device = streamer.device();
        Streamed {
            streamer,
            block,
            kind,
            device,
            split: habit.split,
            back,
            left: [1; PARTS],
            last: false,
            taken: [false; PARTS],
            held: BlockWeights::default(),
        }
    }

    /// Begins a micro-batch whose feed-forward goes in chunks of `tile` tokens (0: in one); `last`: no further one
    /// follows in this visit.
    ///
    /// # Errors
    /// A read or copy failed.
    pub fn begin(&mut self, tile: usize, last: bool) -> Result<()> {
        // By chunks gate and up are taken once around both directions.
        let feed_forward = if tile > 0 { 1 } else { 2 };
        self.left = if self.back { [2, feed_forward, feed_forward, 1] } else { [1; PARTS] };
        self.last = last;
        // Long visits must not starve the lanes.
        self.streamer.pump()
    }
}

impl Streamed<'_> {
    /// Makes `part` readable by compute.
    fn take(&mut self, part: Part) -> Result<()> {
        if !self.taken[part as usize] {
            let (layout, slot) = self.streamer.take(segment(self.block, part))?;
            // SAFETY: the slot keeps the part until the streamer's `done`, which comes after the last kernel that reads it
            // has been queued; the views are forgotten just before, and only a use sees them.
            self.held.extend(unsafe { BlockWeights::view(layout, slot, self.kind, self.device) });
            self.taken[part as usize] = true;
        }
        Ok(())
    }

    /// One use less of `part`; it goes back to the streamer where none is left.
    fn done(&mut self, part: Part) -> Result<()> {
        let left = &mut self.left[part as usize];
        *left = left.saturating_sub(1);
        if self.split || (self.last && *left == 0) {
            self.taken[part as usize] = false;
            self.held.forget(part);
            self.streamer.done(segment(self.block, part))?;
        }
        Ok(())
    }
}

impl Weights for Streamed<'_> {
    fn with(
        &mut self,
        parts: &[Part],
        order: GiveBack,
        use_them: &mut dyn FnMut(&BlockWeights) -> Result<()>,
    ) -> Result<()> {
        parts.iter().try_for_each(|&part| self.take(part))?;
        use_them(&self.held)?;
        match order {
            GiveBack::FirstTaken => parts.iter().try_for_each(|&part| self.done(part)),
            GiveBack::LastTaken => parts.iter().rev().try_for_each(|&part| self.done(part)),
        }
    }
}

/// Logits `[.., V]` in f32 of `normed` `[.., H]`, whole: for few tokens.
///
/// # Errors
/// A read or copy failed, or the device is out of memory.
pub fn logits(
    normed: &Tensor,
    residents: &Residents,
    streamer: &mut Streamer,
    n_blocks: usize,
    kind: Kind,
) -> Result<Tensor> {
    let mut parts = Vec::new();
    let mut part = |rows: &Tensor, _| {
        parts.push(normed.f_matmul(&rows.tr())?.to_kind(Kind::Float));
        Ok(())
    };
    match &residents.head {
        Some(head) => part(head, 0)?,
        None => head_pieces(streamer, n_blocks, kind, &mut part)?,
    }
    Ok(capped(&Tensor::f_cat(&parts, -1)?, residents.cap))
}

/// Hands the pieces of a streamed head to `use_rows`, in order, with the first row of each.
///
/// # Errors
/// A read or copy failed, or what `use_rows` returns.
pub fn head_pieces(
    streamer: &mut Streamer,
    n_blocks: usize,
    kind: Kind,
    use_rows: &mut dyn FnMut(&Tensor, usize) -> Result<()>,
) -> Result<()> {
    let device = streamer.device();
    let mut first = 0;
    for piece in 0..streamer.head_pieces() {
        let segment = n_blocks * PARTS + piece;
        let (layout, slot) = streamer.take(segment)?;
        // SAFETY: the slot keeps the rows until `done` below; `use_rows` only queues kernels that read them.
        let rows = unsafe { weights::view(&layout.pieces[0], slot, kind, device) };
        use_rows(&rows, first)?;
        first += rows.size()[0] as usize;
        drop(rows);
        streamer.done(segment)?;
    }
    Ok(())
}
