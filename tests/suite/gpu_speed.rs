//! A block of Llama-3-8B's shape on the GPU: its memory is bounded, its time against the bare products is printed.

use crate::gpu::gpu;
use crate::support::fixture::Model;
use crate::walk::{open, random_adapter};
use blockstream_tui::checkpoint::Role;
use blockstream_tui::config::LoraSection;
use blockstream_tui::device::shim;
use blockstream_tui::model::rope::RopeTable;
use blockstream_tui::model::{
    Adapter, AdapterLayout, BlockContext, BlockWeights, Kernels, block_backward, block_forward,
};
use std::time::Instant;
use tch::{Kind, Tensor};

const TOKENS: i64 = 2048;
const HIDDEN: i64 = 4096;
const WIDE: i64 = 14336;
const SMALL: i64 = 1024;

fn shape(role: Role) -> Option<[i64; 2]> {
    Some(match role {
        Role::Q | Role::O => [HIDDEN, HIDDEN],
        Role::K | Role::V => [SMALL, HIDDEN],
        Role::Gate | Role::Up => [WIDE, HIDDEN],
        Role::Down => [HIDDEN, WIDE],
        _ => return None,
    })
}

/// Milliseconds of `f`, the median of 15 after a warm-up.
fn milliseconds(mut f: impl FnMut()) -> f64 {
    let mut times: Vec<f64> = (0..18)
        .map(|_| {
            shim::synchronize(0).unwrap();
            let start = Instant::now();
            f();
            shim::synchronize(0).unwrap();
            start.elapsed().as_secs_f64() * 1e3
        })
        .skip(3)
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

#[test]
fn gpu_a_block_of_8b_shape_keeps_to_its_memory() {
    let Some((device, _alone)) = gpu("gpu_a_block_of_8b_shape_keeps_to_its_memory") else { return };
    // As a run without `train.deterministic`.
    shim::set_deterministic(false);
    let _no_grad = tch::no_grad_guard();
    let bf16 = (Kind::BFloat16, device);
    let dir = tempfile::tempdir().unwrap();
    Model::tiny().write(dir.path());
    let mut checkpoint = open(dir.path());
    for t in checkpoint.blocks.iter().flat_map(|b| &b.tensors) {
        if let Some(of_role) = shape(t.role) {
            checkpoint.tensors[t.tensor].shape = of_role.map(|d| d as u64).to_vec();
        }
    }
    let arch = &mut checkpoint.arch;
    (arch.hidden, arch.intermediate, arch.n_heads, arch.n_kv_heads, arch.head_dim) = (4096, 14336, 32, 8, 128);
    let targets = ["q_proj", "k_proj", "v_proj", "o_proj"].map(String::from).to_vec();
    let layout = AdapterLayout::new(&checkpoint, &LoraSection { r: 16, targets, ..LoraSection::default() }).unwrap();
    let adapter = Adapter::new(layout.clone(), &random_adapter(&layout), Kind::BFloat16, device);
    let made = |role| -> Option<(Role, Tensor)> {
        match role {
            Role::InputNorm | Role::PostNorm => Some((role, Tensor::ones([HIDDEN], bf16))),
            _ => shape(role).map(|s| (role, Tensor::randn(s, bf16) * 0.02)),
        }
    };
    let tensors: Vec<(Role, Tensor)> = Role::ALL.into_iter().filter_map(made).collect();
    let plain: Vec<Tensor> =
        tensors.iter().filter(|(r, _)| shape(*r).is_some()).map(|(_, t)| t.shallow_clone()).collect();
    let weights = BlockWeights::from_tensors(tensors);
    let mut weights = &weights;
    let rope = RopeTable::new(&checkpoint.arch, 0, TOKENS as usize, Kind::BFloat16, device);
    let (x, gy) = (Tensor::randn([1, TOKENS, HIDDEN], bf16), Tensor::randn([1, TOKENS, HIDDEN], bf16));
    let grads = Tensor::zeros([layout.len as i64], (Kind::Float, device));

    for mlp_chunk in [0, 512] {
        let context = BlockContext {
            arch: &checkpoint.arch,
            kernels: Kernels::of(device),
            rope: &rope,
            block: 1,
            adapter: Some(adapter.block(1, None)),
            tile: mlp_chunk,
            needs_input: true,
        };
        // Workspaces and kernels are there before anything is measured.
        drop(block_forward(&x, &mut weights, &context, None).unwrap());
        drop(block_backward(&x, &gy, &mut weights, &context, &grads).unwrap());
        let mut peaks = Vec::new();
        for backward in [false, true] {
            let before = shim::memory(0).allocated;
            shim::reset_peak(0);
            if backward {
                drop(block_backward(&x, &gy, &mut weights, &context, &grads).unwrap());
            } else {
                drop(block_forward(&x, &mut weights, &context, None).unwrap());
            }
            peaks.push((shim::memory(0).allocated_peak - before) as f64 / 1e6);
        }
        let up = milliseconds(|| drop(block_forward(&x, &mut weights, &context, None).unwrap()));
        let down = milliseconds(|| drop(block_backward(&x, &gy, &mut weights, &context, &grads).unwrap()));
        println!(
            "chunk {mlp_chunk}: forward {up:.2} ms, {:.0} MB; backward {down:.2} ms, {:.0} MB",
            peaks[0], peaks[1]
        );
        assert!(peaks[1] <= 335.0, "chunk {mlp_chunk}: backward's peak is {:.0} MB", peaks[1]);
    }

    // The floor: the base's products and flash attention alone.
    let input = |cols: i64| Tensor::randn([TOKENS, cols], bf16);
    let heads = |n: i64| Tensor::randn([1, TOKENS, n, 128], bf16);
    let (q, k, v) = (heads(32), heads(8), heads(8));
    let inputs: Vec<(Tensor, Tensor, &Tensor)> =
        plain.iter().map(|w| (input(w.size()[1]), input(w.size()[0]), w)).collect();
    let saved = shim::flash_forward(&q, &k, &v, 0.088, None).unwrap();
    let flash = || drop(shim::flash_forward(&q, &k, &v, 0.088, None).unwrap());
    let up = milliseconds(|| {
        inputs.iter().for_each(|(x, _, w)| drop(x.mm(&w.tr())));
        flash();
    });
    let down = milliseconds(|| {
        // Down's output is not recomputed.
        inputs[..inputs.len() - 1].iter().for_each(|(x, _, w)| drop(x.mm(&w.tr())));
        flash();
        drop(shim::flash_backward(&q, [&q, &k, &v], &saved, 0.088, None).unwrap());
        inputs.iter().for_each(|(_, dy, w)| drop(dy.mm(w)));
    });
    println!("products and flash attention alone: forward {up:.2} ms, backward {down:.2} ms");
}
