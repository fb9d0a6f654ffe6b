//! Opens a checkpoint for a test: streamed any way the test likes.

use blockstream_tui::checkpoint::{self, Checkpoint};
use blockstream_tui::config::LoraSection;
use blockstream_tui::device::shim;
use blockstream_tui::event::TierName;
use blockstream_tui::model::{Adapter, AdapterLayout, Residents};
use blockstream_tui::store::Reader;
use blockstream_tui::stream::{StreamSetup, Streamer};
use blockstream_tui::train::BlockWalk;
use std::path::Path;
use std::time::Duration;
use tch::{Device, Kind};

/// How to stream.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub tier: TierName,
    /// Blocks of the VRAM tier, from the top of an even spread.
    pub resident: usize,
    pub ring: usize,
    pub ahead: usize,
    pub read_delay_ms: u64,
    pub copy_delay_ms: u64,
}

impl How {
    pub fn all_resident() -> How {
        How { tier: TierName::Vram, resident: usize::MAX, ring: 0, ahead: 0, read_delay_ms: 0, copy_delay_ms: 0 }
    }
    pub fn streamed(tier: TierName, ring: usize, ahead: usize) -> How {
        How { tier, resident: 0, ring, ahead, read_delay_ms: 0, copy_delay_ms: 0 }
    }
}

pub fn open(dir: &Path) -> Checkpoint {
    let _ = shim::init();
    checkpoint::open(dir).unwrap()
}

/// A walk over `checkpoint` with the adapter `flat` (fresh with seed 7 when `None`).
pub fn walk(checkpoint: &Checkpoint, how: How, lora: &LoraSection, flat: Option<Vec<f32>>, chunk: usize) -> BlockWalk {
    let n = checkpoint.blocks.len();
    let resident = how.resident.min(n);
    let tiers: Vec<TierName> = (0..n)
        .map(|b| if resident > 0 && (b * resident) / n != ((b + 1) * resident) / n { TierName::Vram } else { how.tier })
        .collect();
    let setup = StreamSetup {
        copy_delay: Duration::from_millis(how.copy_delay_ms),
        ..StreamSetup::cpu(tiers, (resident + how.ring).max(1), how.ahead)
    };
    let reader = Reader::open(checkpoint, Duration::from_millis(how.read_delay_ms)).unwrap();
    let streamer = Streamer::new(checkpoint, reader, &setup, &mut |_, _| {}).unwrap();
    let residents =
        Residents::load(checkpoint, streamer.reader(), Kind::Float, Device::Cpu, &mut |_, _| {}).unwrap();
    let layout = AdapterLayout::new(checkpoint, lora).unwrap();
    let flat = flat.unwrap_or_else(|| random_adapter(&layout));
    let adapter = Adapter::new(layout, &flat, Kind::Float, Device::Cpu);
    BlockWalk::new(checkpoint, residents, adapter, streamer, Kind::Float, chunk)
}

/// A and B both random: at B = 0 a detached adapter would pass every comparison.
pub fn random_adapter(layout: &AdapterLayout) -> Vec<f32> {
    use blockstream_tui::model::dropout::{mix, uniform};
    (0..layout.len).map(|i| (uniform(mix(7), i as u64) - 0.5) as f32 * 0.2).collect()
}
