//! Properties of plans over random shapes, machines and configs.

use super::made::{Shape, TINY, checkpoint as build};
use super::{check, count, machine};
use blockstream_tui::checkpoint::Dtype;
use blockstream_tui::config::{ByteSize, RunConfig, TierChoice};
use blockstream_tui::device::Machine;
use blockstream_tui::event::TierName;
use blockstream_tui::plan::{Verdict, plan};
use blockstream_tui::units::Bytes;
use proptest::prelude::*;

/// Random shapes, machines and configs.
fn world() -> impl Strategy<Value = (Shape, Machine, RunConfig)> {
    let shape =
        (1usize..14, 1usize..5, 1usize..5, any::<bool>(), any::<bool>()).prop_map(|(layers, h, i, tied, biases)| {
            Shape { layers, hidden: 64 * h, intermediate: 96 * i, tied, biases, ..TINY }
        });
    let memory = (20u64..34, 29u64..35, any::<bool>(), any::<bool>());
    let stream = (0usize..6, 0usize..5, 0u64..3, prop_oneof![Just("auto"), Just("ram"), Just("disk")]);
    let job = (1usize..4, 1usize..5, 1usize..300, 1u32..=10);
    (shape, memory, stream, job).prop_map(|(shape, memory, stream, job)| {
        let mut m = machine("rtx5050-laptop-8gb");
        (m.ram.total, m.ram.available, m.ram.pinnable) =
            (Bytes(1 << memory.1), Bytes(1 << memory.1), Bytes(1 << memory.0));
        match &mut m.gpu {
            Some(g) if memory.2 => {
                (g.vram_total, g.vram_free, g.overhead) = (Bytes(1 << memory.0), Bytes(1 << memory.0), Bytes(0));
                g.integrated = memory.3;
            }
            _ => m.gpu = None,
        }
        let mut c = RunConfig::default();
        (c.stream.prefetch_ahead, c.stream.slots) = (stream.0, stream.1);
        c.stream.host_budget = ByteSize([0, 1 << 20, 4 << 20][stream.2 as usize]);
        c.stream.tier = stream.3.parse().unwrap();
        (c.train.per_device_train_batch_size, c.train.gradient_accumulation_steps) = (job.0, job.1);
        c.data.max_length = job.2;
        c.lora.top_fraction = f64::from(job.3) / 10.0;
        (shape, m, c)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_plan_is_consistent((shape, m, cfg) in world()) {
        let c = build(shape, Dtype::BF16);
        let p = plan(&c, &m, &cfg).unwrap();
        check(&c, &p);
        let lora = &p.modes.lora;
        let blocks = c.blocks.len();
        prop_assert!(lora.lowest_trainable < blocks);
        prop_assert_eq!(&p, &plan(&c, &m, &cfg).unwrap(), "pure");
        if lora.verdict != Verdict::Infeasible {
            let wished = if cfg.stream.slots == 0 { cfg.stream.prefetch_ahead + 1 } else { cfg.stream.slots };
            prop_assert!(lora.ring_slots <= wished);
            if cfg.stream.tier == TierChoice::Ram { prop_assert_eq!(lora.verdict, Verdict::Ram); }
            if cfg.stream.host_budget.0 > 0 {
                let weights: u64 = ["ram_tier", "ring"].iter().filter_map(|t| lora.host.terms.get(*t)).map(|b| b.0).sum();
                prop_assert!(weights <= cfg.stream.host_budget.0);
            }
        }
    }

    #[test]
    fn more_memory_never_gives_a_worse_plan((shape, m, cfg) in world()) {
        let c = build(shape, Dtype::BF16);
        let mut more = m.clone();
        for b in [&mut more.ram.total, &mut more.ram.available, &mut more.ram.pinnable] { b.0 *= 2; }
        if let Some(g) = &mut more.gpu { g.vram_total.0 *= 2; g.vram_free.0 *= 2; }
        let (a, b) = (plan(&c, &m, &cfg).unwrap().modes.lora, plan(&c, &more, &cfg).unwrap().modes.lora);
        prop_assert!(b.verdict <= a.verdict, "{:?} -> {:?}", a.verdict, b.verdict);
        if a.verdict != Verdict::Infeasible {
            // Sums of the same terms in another order differ in their last bits.
            prop_assert!(b.seconds_per_step.low <= a.seconds_per_step.low * (1.0 + 1e-9));
            prop_assert!(count(&b, TierName::Disk) <= count(&a, TierName::Disk));
        }
    }
}
