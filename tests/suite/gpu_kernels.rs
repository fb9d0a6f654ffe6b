//! Every fused kernel against libtorch's operators on the same GPU, in every type, at sizes that fill 16-byte accesses
//! and sizes that don't; then whole blocks and the head. Without a GPU each test says why it did not run.

use crate::block_case::{Case, How};
use crate::golden::assert_close;
use crate::gpu::gpu;
use crate::support::fixture::Model;
use crate::walk::host;
use blockstream_tui::checkpoint::arch::{Act, NormKind};
use blockstream_tui::config::LoraSection;
use blockstream_tui::device::shim;
use blockstream_tui::model::attention::{self, Qkv};
use blockstream_tui::model::dropout::{MaskKey, mix, uniform};
use blockstream_tui::model::head::{Asked, HeadLoss, OnlineHead, head_loss};
use blockstream_tui::model::kernels::{AdamStep, Kernels, NormUse, OnlineRows, Scoring, Tile};
use blockstream_tui::model::rope::RopeTable;
use tch::{Device, Kind, Tensor};

const KINDS: [Kind; 3] = [Kind::Float, Kind::BFloat16, Kind::Half];

/// Two units in the last place of the largest value.
fn tolerance(kind: Kind) -> f32 {
    match kind {
        Kind::BFloat16 => 8e-3,
        Kind::Half => 1e-3,
        _ => 1e-5,
    }
}

/// Random values of `kind`, equal on every machine.
fn random(shape: &[i64], seed: u64, kind: Kind, device: Device) -> Tensor {
    let n: i64 = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (uniform(mix(seed), i as u64) - 0.5) as f32 * 4.0).collect();
    Tensor::from_slice(&values).view(shape).to_kind(kind).to_device(device)
}

fn same(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!((got.size(), got.kind()), (want.size(), want.kind()), "{what}");
    assert_close(
        &format!("{what} {:?} {:?}", want.kind(), want.size()),
        &host(got),
        &host(want),
        tolerance(want.kind()),
    );
}

/// The fused kernels of the GPU and the reference on it, or a line that says why there is none.
fn both(test: &str) -> Option<(Device, &'static Kernels, Kernels, std::sync::MutexGuard<'static, ()>)> {
    let (device, alone) = gpu(test)?;
    let fused = Kernels::of(device);
    assert!(fused.describe().starts_with("fused (NVRTC, sm_"), "{}", fused.describe());
    Some((device, fused, Kernels::torch(None, "the reference"), alone))
}

#[test]
fn gpu_kernels_of_the_norms_are_the_references() {
    let Some((device, fused, torch, _alone)) = both("gpu_kernels_of_the_norms_are_the_references") else { return };
    for kind in KINDS {
        // Rows of a model's width, rows that no access divides, and heads in a wider matrix, aligned and not.
        let whole = [vec![5, 4096], vec![3, 576], vec![7, 37], vec![2, 1], vec![4, 8200]];
        let mut inputs: Vec<Tensor> = whole.iter().map(|s| random(s, 1, kind, device)).collect();
        let wide = random(&[6, 1024], 2, kind, device);
        inputs.push(wide.narrow(1, 256, 512).view([6, 4, 128]));
        inputs.push(wide.narrow(1, 3, 60).view([6, 3, 20]));
        let kinds = [NormKind::Rms, NormKind::RmsF32, NormKind::RmsPlusOne];
        for (x, norm) in inputs.iter().flat_map(|x| kinds.map(|norm| (x, norm))) {
            let n = *x.size().last().unwrap();
            let weight = random(&[n], 3, kind, device) * 0.1 + 1.0;
            let of = NormUse { eps: 1e-5, kind: norm };
            let [got, want] = [fused, &torch].map(|k| k.rms_norm(x, &weight, of).unwrap());
            same(&format!("{norm:?}"), &got, &want);
            if n == 1 {
                // The gradient of a norm over one value is what rounding leaves of zero.
                continue;
            }
            let (dy, residual) = (random(&x.size(), 4, kind, device), random(&x.size(), 5, kind, device));
            for residual in [None, Some(&residual)] {
                let (got, want) = (dy.copy(), dy.copy());
                fused.rms_norm_backward(x, &weight, of, &got, residual).unwrap();
                torch.rms_norm_backward(x, &weight, of, &want, residual).unwrap();
                same(&format!("gradient of {norm:?}"), &got, &want);
            }
        }
    }
}

#[test]
fn gpu_kernels_of_rope_are_the_references() {
    let Some((device, fused, torch, _alone)) = both("gpu_kernels_of_rope_are_the_references") else { return };
    for kind in KINDS {
        for (s, d, q_heads, k_heads, offset) in
            [(33, 128, 8, 2, 0), (7, 64, 3, 3, 0), (5, 20, 2, 1, 0), (9, 32, 4, 2, 1)]
        {
            let angles = random(&[s, d / 2], 1, Kind::Float, device);
            for of in [kind, Kind::Float] {
                let table = RopeTable { cos: angles.cos().to_kind(of), sin: angles.sin().to_kind(of) };
                let buffer = random(&[2 * s, (q_heads + k_heads) * d + offset], 2, kind, device);
                let heads = |of: &Tensor, at: i64, n: i64| of.narrow(1, offset + at * d, n * d).view([2 * s, n, d]);
                for inverse in [false, true] {
                    let (got, want) = (buffer.copy(), buffer.copy());
                    fused.rope(&heads(&got, 0, q_heads), &heads(&got, q_heads, k_heads), &table, inverse).unwrap();
                    torch.rope(&heads(&want, 0, q_heads), &heads(&want, q_heads, k_heads), &table, inverse).unwrap();
                    same(&format!("rope of width {d}, inverse {inverse}, table in {of:?}"), &got, &want);
                }
            }
        }
    }
}

#[test]
fn gpu_kernels_of_gated_activations_and_dropout_are_the_references() {
    let Some((device, fused, torch, _alone)) = both("gpu_kernels_of_gated_activations_and_dropout_are_the_references")
    else {
        return;
    };
    let key = MaskKey::new(1, 2, 3, 4, 5);
    for kind in KINDS {
        for shape in [[64, 1536], [3, 37], [1, 1], [129, 264]] {
            let tensor = |seed| random(&shape, seed, kind, device);
            for act in [Act::Silu, Act::GeluTanh] {
                let (got, want) = (tensor(1), tensor(1));
                fused.glu(act, &got, &tensor(2)).unwrap();
                torch.glu(act, &want, &tensor(2)).unwrap();
                same(&format!("{act:?}"), &got, &want);
                for keep in [false, true] {
                    let (got, want) = ([1, 2, 3].map(tensor), [1, 2, 3].map(tensor));
                    fused.glu_backward(act, &got[0], &got[1], &got[2], keep).unwrap();
                    torch.glu_backward(act, &want[0], &want[1], &want[2], keep).unwrap();
                    for (name, (got, want)) in ["gate", "up", "activation"].iter().zip(got.iter().zip(&want)) {
                        same(&format!("{act:?}'s {name}, keep {keep}"), got, want);
                    }
                }
            }
            for first in [0, 24_000_000_001] {
                let x = tensor(1);
                let (got, want) = (fused.dropout(&x, 0.3, key, first), torch.dropout(&x, 0.3, key, first));
                assert_eq!(host(&got.unwrap()), host(&want.unwrap()), "dropout {kind:?} {shape:?} from {first}");
                let (got, want) = (tensor(2), tensor(2));
                fused.dropout_add(&got, &x, 0.3, key, first).unwrap();
                torch.dropout_add(&want, &x, 0.3, key, first).unwrap();
                same("dropout's sum", &got, &want);
            }
        }
    }
}

#[test]
fn gpu_kernels_of_the_head_are_the_references() {
    let Some((device, fused, torch, _alone)) = both("gpu_kernels_of_the_head_are_the_references") else { return };
    for kind in KINDS {
        for (rows, n) in [(9, 32_000), (5, 49_153), (3, 37), (2, 1)] {
            let logits = random(&[rows, n], 1, kind, device) * 3.0;
            let labels: Vec<i64> = (0..rows).map(|r| (r * 7919) % n).collect();
            let labels = Tensor::from_slice(&labels).to_device(device);
            for (cap, grad) in [(None, false), (None, true), (Some(4.0), false), (Some(4.0), true)] {
                let (got, want) = (logits.copy(), logits.copy());
                let losses = fused.cross_entropy(&got, &labels, cap, grad).unwrap();
                same("losses", &losses, &torch.cross_entropy(&want, &labels, cap, grad).unwrap());
                same(&format!("logits' gradient, cap {cap:?}"), &got, &want);
            }
            for cap in [None, Some(4.0)] {
                let states = [OnlineRows::new(rows, device).unwrap(), OnlineRows::new(rows, device).unwrap()];
                for (at, len) in [(0, n / 2), (n / 2, n - n / 2)] {
                    if len == 0 {
                        continue;
                    }
                    let chunk = logits.narrow(1, at, len).contiguous();
                    let (got, want) = (chunk.copy(), chunk.copy());
                    fused.online_softmax(&got, &labels, &states[0], at, cap, true).unwrap();
                    torch.online_softmax(&want, &labels, &states[1], at, cap, true).unwrap();
                    same("exponentials", &got, &want);
                    for (got, want) in [
                        (&states[0].max, &states[1].max),
                        (&states[0].sum, &states[1].sum),
                        (&states[0].scale, &states[1].scale),
                    ] {
                        same("state", got, want);
                    }
                }
                same("label's logit", &states[0].picked, &states[1].picked);
            }
        }
        for width in [64, 37] {
            let w = random(&[20, width], 1, kind, device);
            let labels = Tensor::from_slice(&[3_i64, 25, 19, 44, 7]).to_device(device);
            let (got, want) = (random(&[5, width], 2, kind, device), random(&[5, width], 2, kind, device));
            fused.gather_rows(&got, &w, &labels, 7).unwrap();
            torch.gather_rows(&want, &w, &labels, 7).unwrap();
            assert_eq!(host(&got), host(&want), "rows of labels, {kind:?}");
        }
    }
}

#[test]
fn gpu_kernels_of_adamw_are_the_references() {
    let Some((device, fused, torch, _alone)) = both("gpu_kernels_of_adamw_are_the_references") else { return };
    let step = AdamStep { decay: 0.9999, lerp: 0.1, beta2: 0.999, correction2: 0.0316, eps: 1e-8, step: 1e-3 };
    let tensor = |seed| random(&[10_007], seed, Kind::Float, device);
    let state = || [tensor(1), tensor(2), tensor(3).square(), tensor(4)];
    let (got, want) = (state(), state());
    for _ in 0..3 {
        fused.adamw(&got[0], &got[1], &got[2], &got[3], step).unwrap();
        torch.adamw(&want[0], &want[1], &want[2], &want[3], step).unwrap();
    }
    for (got, want) in got.iter().zip(&want) {
        same("adamw", got, want);
    }
    let equal = got[0].eq_tensor(&want[0]).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
    println!("AdamW: {:.2} % of the parameters are bit-equal to torch's operators", equal * 100.0);
}

#[test]
fn gpu_kernels_of_attentions_weights_are_the_references() {
    let Some((device, fused, torch, _alone)) = both("gpu_kernels_of_attentions_weights_are_the_references") else {
        return;
    };
    for kind in KINDS {
        // Tiles whose rows fill 16-byte accesses and tiles whose rows don't; keys before the window, and none.
        for (queries, group, keys, query, key) in
            [(5, 2, 64, 59, 0), (3, 4, 37, 34, 0), (1, 1, 1, 0, 0), (7, 2, 2048, 4000, 1959)]
        {
            let shape = [3, queries * group, keys];
            let products = random(&shape, 1, kind, device) * 4.0;
            for (cap, window) in [(None, None), (Some(5.0), None), (Some(50.0), Some(30))] {
                let (of, tile) = (Scoring { scale: 0.5, cap, window }, Tile { query, key, group });
                let what = format!("{of:?} {tile:?}");
                let (got, want) = (products.copy(), products.copy());
                fused.attend(&got, None, of, tile).unwrap();
                torch.attend(&want, None, of, tile).unwrap();
                same(&format!("weights, {what}"), &got, &want);
                let (got, want) = (products.copy(), products.copy());
                let (dgot, dwant) = (random(&shape, 2, kind, device), random(&shape, 2, kind, device));
                fused.attend(&got, Some(&dgot), of, tile).unwrap();
                torch.attend(&want, Some(&dwant), of, tile).unwrap();
                same(&format!("weights on the way back, {what}"), &got, &want);
                if keys > 1 {
                    same(&format!("gradient of the products, {what}"), &dgot, &dwant);
                }
            }
        }
    }
}

#[test]
fn gpu_capped_attention_is_that_of_the_cpu() {
    let Some((device, fused, torch, _alone)) = both("gpu_capped_attention_is_that_of_the_cpu") else { return };
    let _no_grad = tch::no_grad_guard();
    for (s, d, heads, kv_heads, window) in
        [(65, 128, 8, 2, None), (40, 256, 4, 4, Some(16)), (1500, 64, 4, 2, Some(700))]
    {
        let of = Scoring { scale: 0.2, cap: Some(3.0), window };
        let run = |kernels: &Kernels, kind: Kind, device: Device| {
            // The same values everywhere: those of bf16.
            let place =
                |n, seed| random(&[2, s, n, d], seed, Kind::BFloat16, Device::Cpu).to_device(device).to_kind(kind);
            let qkv = Qkv { q: place(heads, 1), k: place(kv_heads, 2), v: place(kv_heads, 3) };
            let out = attention::forward(kernels, &qkv, of, None, true).unwrap();
            let back = attention::backward(kernels, &place(heads, 4), &qkv, &out, of).unwrap();
            [host(&out.out), host(&back.q), host(&back.k), host(&back.v)]
        };
        let want = run(Kernels::of(Device::Cpu), Kind::Float, Device::Cpu);
        // A product of hundreds of numbers is rounded to 16 bits before it becomes a score.
        for (kind, allowed) in [(Kind::Float, 1e-4), (Kind::BFloat16, 0.05), (Kind::Half, 0.008)] {
            for (name, kernels) in [("fused", fused), ("operators", &torch)] {
                let got = run(kernels, kind, device);
                for (part, (got, want)) in ["out", "dq", "dk", "dv"].iter().zip(got.iter().zip(&want)) {
                    assert_close(&format!("{part}, {name}, {kind:?}, S {s}, D {d}"), got, want, allowed);
                }
            }
        }
    }
}

#[test]
fn gpu_flash_attention_agrees_with_sdpa_forward_and_backward() {
    let Some((device, fused, torch, _alone)) = both("gpu_flash_attention_agrees_with_sdpa_forward_and_backward") else {
        return;
    };
    let _no_grad = tch::no_grad_guard();
    for kind in [Kind::BFloat16, Kind::Half] {
        // Long rows go to cuDNN where the card is one that it is made for, and bits need not be the same each time.
        for (s, d, heads, kv_heads, window) in [
            (65, 128, 8, 2, None),
            (40, 64, 9, 3, None),
            (70, 128, 4, 4, Some(16)),
            (33, 16, 4, 2, Some(5)),
            (1088, 128, 8, 2, None),
            (1030, 64, 9, 3, None),
            (1088, 64, 4, 4, Some(100)),
        ] {
            assert!(fused.attention(kind, d).flash() && !torch.attention(kind, d).flash());
            // Slices of one buffer, as the block's are.
            let buffer = random(&[2, s, (heads + 2 * kv_heads) * d], 1, kind, device);
            let cut = |at: i64, n: i64| buffer.narrow(2, at * d, n * d).view([2, s, n, d]);
            let qkv = Qkv { q: cut(0, heads), k: cut(heads, kv_heads), v: cut(heads + kv_heads, kv_heads) };
            let dout = random(&[2, s, heads, d], 2, kind, device);
            let of = Scoring::usual(d as usize, window);
            let run = |kernels: &Kernels, deterministic: bool| {
                shim::set_deterministic(deterministic);
                let out = attention::forward(kernels, &qkv, of, None, true).unwrap();
                let back = attention::backward(kernels, &dout, &qkv, &out, of).unwrap();
                [host(&out.out), host(&back.q), host(&back.k), host(&back.v)]
            };
            let want = run(&torch, true);
            for deterministic in [false, true] {
                let got = run(fused, deterministic);
                for (name, (got, want)) in ["out", "dq", "dk", "dv"].iter().zip(got.iter().zip(&want)) {
                    let what = format!("{name} {kind:?} S {s} D {d} window {window:?} deterministic {deterministic}");
                    assert_close(&what, got, want, 0.02);
                }
            }
        }
    }
}

#[test]
fn gpu_case_fo_01_deterministic_attention_gives_the_same_bits_each_time() {
    let Some((device, fused, _, _alone)) = both("gpu_case_fo_01_deterministic_attention") else { return };
    for (rows, length) in [(1, 2048), (4, 2048), (1, 8192)] {
        for window in [None, Some(1024)] {
            let [q, dout] = [7, 8].map(|seed| random(&[rows, length, 32, 128], seed, Kind::BFloat16, device));
            let [k, v] = [9, 10].map(|seed| random(&[rows, length, 8, 128], seed, Kind::BFloat16, device));
            let qkv = Qkv { q, k, v };
            let of = Scoring::usual(128, window);
            let once = || {
                let attended = attention::forward(fused, &qkv, of, None, true).unwrap();
                let back = attention::backward(fused, &dout, &qkv, &attended, of).unwrap();
                [attended.out.shallow_clone(), back.q, back.k, back.v]
            };
            let first = once();
            for repeat in 1..24 {
                for (name, (a, b)) in ["out", "dQ", "dK", "dV"].iter().zip(first.iter().zip(&once())) {
                    assert!(a.equal(b), "{name} of {rows} x {length}, window {window:?}, repeat {repeat}");
                }
            }
        }
    }
}

#[test]
fn gpu_blocks_by_fused_kernels_agree_with_operators_and_the_cpu() {
    let Some((device, fused, torch, _alone)) = both("gpu_blocks_by_fused_kernels_agree_with_operators_and_the_cpu")
    else {
        return;
    };
    for family in ["llama", "mistral", "qwen2", "qwen3"] {
        for dropout in [0.0, 0.3] {
            let model = match family {
                "mistral" => Model::family(family).set("sliding_window", 16),
                _ => Model::family(family),
            };
            let lora = LoraSection {
                r: 8,
                alpha: 16.0,
                dropout,
                targets: vec!["all-linear".into()],
                ..LoraSection::default()
            };
            let case = Case::new(model, &lora, 2, 45);
            let want = case.autograd();
            for kind in KINDS {
                // Against f32, a block in bf16 is off by some units in the last place per operation.
                let allowed = match kind {
                    Kind::BFloat16 => 0.05,
                    Kind::Half => 0.008,
                    _ => 1e-4,
                };
                for (name, kernels) in [("fused", fused), ("operators", &torch)] {
                    for mlp_chunk in [0, 32] {
                        let how = How { kernels, kind, device, mlp_chunk, needs_input: true };
                        let got = case.run(how).0;
                        let what = format!("{family}, {kind:?}, {name}, dropout {dropout}, chunk {mlp_chunk}");
                        assert_close(&format!("{what}: output"), &got.y, &want.y, allowed);
                        assert_close(&format!("{what}: gx"), &got.gx, &want.gx, allowed);
                        assert_close(&format!("{what}: gradients"), &got.grads, &want.grads, allowed);
                        let again = case.run(how).0;
                        let equal = got.y == again.y && got.gx == again.gx && got.grads == again.grads;
                        assert!(equal, "{what}: two runs differ");
                    }
                }
            }
        }
    }
}

#[test]
fn gpu_heads_resident_and_streamed_agree_with_the_cpu() {
    let Some((device, fused, torch, _alone)) = both("gpu_heads_resident_and_streamed_agree_with_the_cpu") else {
        return;
    };
    let (n, h, v) = (50_i64, 96_i64, 1003_i64);
    let on = |kind, device| {
        let labels: Vec<i64> = (0..n).map(|i| (i * 613) % v).collect();
        let hidden = random(&[n, h], 1, kind, device);
        // Small logits: in bf16 large ones are off by more than the tolerance before any kernel sees them.
        (hidden, Tensor::from_slice(&labels).to_device(device), random(&[v, h], 2, kind, device) * 0.05)
    };
    fn ask((hidden, labels, _): &(Tensor, Tensor, Tensor), cap: Option<f64>) -> Asked<'_> {
        Asked { hidden, labels, cap, wanted: true, tokens: 16 }
    }
    let streamed = |kernels: &Kernels, inputs: &(Tensor, Tensor, Tensor), cap| {
        let head = &inputs.2;
        let mut online = OnlineHead::new(kernels, ask(inputs, cap)).unwrap();
        for at in (0..v).step_by(300) {
            online.chunk(&head.narrow(0, at, 300.min(v - at)), at as usize, &|| Ok(())).unwrap();
        }
        online.finish().unwrap()
    };
    for (kind, cap) in KINDS.into_iter().flat_map(|kind| [None, Some(0.5)].map(|cap| (kind, cap))) {
        // The CPU gets the same rounded values.
        let (hidden, labels, head) = on(kind, device);
        let up = |t: &Tensor| t.to_device(Device::Cpu).to_kind(Kind::Float);
        let cpu = (up(&hidden), labels.to_device(Device::Cpu), up(&head));
        let want = head_loss(Kernels::of(Device::Cpu), ask(&cpu, cap), &cpu.2, &|| Ok(())).unwrap();
        let inputs = (hidden, labels, head);
        let sum = |nll: &Tensor| nll.sum(Kind::Double).double_value(&[]);
        let check = |what: &str, got: &HeadLoss| {
            let (loss, right) = (sum(&got.nll), sum(&want.nll));
            let allowed = tolerance(kind).max(1e-5);
            assert!((loss / right - 1.0).abs() < f64::from(allowed), "{what} {kind:?}: {loss} {right}");
            let (got, want) = (host(got.grad.as_ref().unwrap()), host(want.grad.as_ref().unwrap()));
            assert_close(&format!("{what} {kind:?}"), &got, &want, allowed * 2.0);
        };
        for (name, kernels) in [("fused", fused), ("operators", &torch)] {
            let resident = head_loss(kernels, ask(&inputs, cap), &inputs.2, &|| Ok(())).unwrap();
            check(&format!("resident, {name}"), &resident);
            check(&format!("streamed, {name}"), &streamed(kernels, &inputs, cap));
        }
    }
}
