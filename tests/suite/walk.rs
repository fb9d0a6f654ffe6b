//! Opens a checkpoint for a test: on any device, streamed any way the test likes.

use blockstream_tui::checkpoint::{self, Checkpoint};
use blockstream_tui::config::LoraSection;
use blockstream_tui::device::shim;
use blockstream_tui::event::TierName;
use blockstream_tui::model::dropout::{mix, uniform};
use blockstream_tui::model::{Adapter, AdapterLayout, Residents, compute_kind};
use blockstream_tui::store::Reader;
use blockstream_tui::stream::{StreamSetup, Streamer};
use blockstream_tui::train::BlockWalk;
use std::path::Path;
use std::time::Duration;
use tch::{Device, Kind, Tensor};

/// How to stream.
#[derive(Clone, Copy, Debug)]
pub struct How {
    pub device: Device,
    pub tier: TierName,
    /// Blocks of the VRAM tier, evenly spread.
    pub resident: usize,
    pub ring: usize,
    pub ahead: usize,
    pub read_delay_ms: u64,
    pub copy_delay_ms: u64,
    /// Where a streamed head waits (`Vram`: in pieces, but there for good).
    pub head: Option<TierName>,
    /// Block inputs wait in host memory.
    pub offload: bool,
    /// One slot of each kind: a block passes part by part.
    pub split: bool,
    /// Tokens of the feed-forward at a time.
    pub mlp_chunk: usize,
    /// Places of every row, if more than its tokens.
    pub row: usize,
    /// What it computes in; `None`: what the device takes for the checkpoint.
    pub kind: Option<Kind>,
}

impl How {
    pub fn resident(device: Device) -> How {
        How {
            device,
            tier: TierName::Vram,
            resident: usize::MAX,
            ring: 0,
            ahead: 0,
            read_delay_ms: 0,
            copy_delay_ms: 0,
            head: None,
            offload: false,
            split: false,
            mlp_chunk: 0,
            row: 0,
            kind: None,
        }
    }

    /// What `self` must equal: the same computation with everything on the device.
    pub fn reference(self) -> How {
        How {
            head: self.head.map(|_| TierName::Vram),
            mlp_chunk: self.mlp_chunk,
            row: self.row,
            kind: self.kind,
            ..How::resident(self.device)
        }
    }
    pub fn streamed(device: Device, tier: TierName, ring: usize, ahead: usize) -> How {
        How { tier, resident: 0, ring, ahead, ..How::resident(device) }
    }
}

pub fn open(dir: &Path) -> Checkpoint {
    let _ = shim::init();
    checkpoint::open(dir).unwrap()
}

/// A walk over `checkpoint` with the adapter `flat` (random A and B when `None`).
pub fn walk(checkpoint: &Checkpoint, how: How, lora: &LoraSection, flat: Option<Vec<f32>>, chunk: usize) -> BlockWalk {
    let n = checkpoint.blocks.len();
    let resident = how.resident.min(n);
    let is_resident = |b: usize| (b * resident) / n != ((b + 1) * resident) / n;
    let tiers: Vec<TierName> = (0..n).map(|b| if is_resident(b) { TierName::Vram } else { how.tier }).collect();
    let ring = match (how.split, how.ring) {
        (true, _) => [1, 1],
        (_, 0) if how.head.is_some() => [0, 2],
        (_, k) => [k, 3 * k],
    };
    let setup = StreamSetup {
        ring,
        split: how.split,
        head: how.head,
        copy_delay: Duration::from_millis(how.copy_delay_ms),
        ..StreamSetup::cpu(tiers, how.ring, how.ahead)
    };
    let setup = setup.on(how.device).unwrap();
    let reader = Reader::open(checkpoint, Duration::from_millis(how.read_delay_ms)).unwrap();
    let streamer = Streamer::new(checkpoint, reader, &setup, &mut |_, _| {}).unwrap();
    let kind = how.kind.unwrap_or_else(|| compute_kind(checkpoint, how.device));
    let residents =
        Residents::load(checkpoint, streamer.reader(), kind, how.device, how.head.is_none(), &mut |_, _| Ok(()))
            .unwrap();
    let layout = AdapterLayout::new(checkpoint, lora).unwrap();
    let flat = flat.unwrap_or_else(|| random_adapter(&layout));
    let adapter = Adapter::new(layout, &flat, kind, how.device);
    let mut walk = BlockWalk::new(checkpoint, residents, adapter, streamer, kind, chunk);
    walk.mlp_chunk = how.mlp_chunk;
    if how.offload {
        // Room for 32 rows of up to 40 tokens.
        walk.boundaries = setup.offload(n, 32, (40 * checkpoint.arch.hidden * 4) as u64).unwrap();
    }
    walk
}

/// A and B both random: at B = 0 a detached adapter would pass every comparison.
pub fn random_adapter(layout: &AdapterLayout) -> Vec<f32> {
    (0..layout.len).map(|i| (uniform(mix(7), i as u64) - 0.5) as f32 * 0.2).collect()
}

/// A tensor's values on the host, flat, f32.
pub fn host(t: &Tensor) -> Vec<f32> {
    Vec::<f32>::try_from(&t.to_device(Device::Cpu).to_kind(tch::Kind::Float).reshape([-1])).unwrap()
}
