//! The reference operations against autograd, f32 on the CPU.

use super::{AdamStep, Kernels, NormUse, OnlineRows};
use crate::checkpoint::arch::{Act, NormKind};
use crate::device::AttentionKernel;
use crate::device::shim;
use crate::model::dropout::{self, MaskKey};
use crate::model::rope::RopeTable;
use tch::{Device, Kind, Tensor};

const F32: (Kind, Device) = (Kind::Float, Device::Cpu);

fn kernels() -> &'static Kernels {
    let _ = shim::init();
    tch::manual_seed(5);
    Kernels::of(Device::Cpu)
}

fn leaf(t: &Tensor) -> Tensor {
    t.detach().copy().set_requires_grad(true)
}

fn grads(y: &Tensor, dy: &Tensor, inputs: &[&Tensor]) -> Vec<Tensor> {
    shim::grad(&[y], &[dy], inputs).unwrap().into_iter().map(|g| g.unwrap()).collect()
}

fn close(what: &str, got: &Tensor, want: &Tensor) {
    assert_eq!(got.size(), want.size(), "{what}");
    let worst = (got - want).abs().max().double_value(&[]);
    let most = want.abs().max().double_value(&[]).max(1e-6);
    assert!(worst <= 2e-6 * most, "{what}: off by {worst:e} of {most:e}");
}

#[test]
fn the_cpu_says_that_it_computes_by_torch_operators() {
    assert_eq!(kernels().describe(), "torch operators (no GPU)");
    let flash = |k: &Kernels, kind, width| k.attention(kind, width).flash();
    assert!(!flash(kernels(), Kind::BFloat16, 64));
    let old = Kernels::torch(Some((7, 5)), "a test");
    let new = Kernels::torch(Some((9, 0)), "a test");
    assert!(!flash(&old, Kind::BFloat16, 64) && flash(&new, Kind::BFloat16, 64) && flash(&new, Kind::Half, 256));
    assert!(!flash(&new, Kind::Float, 64) && !flash(&new, Kind::Half, 20) && !flash(&new, Kind::Half, 264));
}

/// Deterministic mode is a property of the process.
static MODE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[test]
fn case_fo_01_deterministic_rows_never_go_to_cudnn() {
    let _alone = MODE.lock().unwrap();
    for capability in [(9, 0), (10, 0), (12, 0), (8, 0)] {
        let card = Kernels::torch(Some(capability), "a test");
        crate::device::shim::set_deterministic(true);
        for length in [1024, 2048, 8192, 1 << 20] {
            assert_eq!(card.attention(Kind::BFloat16, 128).kernel(length, None), AttentionKernel::Flash);
            assert_eq!(card.row_length(Kind::Half, 64, length + 1, usize::MAX), length + 1);
        }
        crate::device::shim::set_deterministic(false);
        let cudnn = card.attention(Kind::BFloat16, 128).kernel(2048, None) == AttentionKernel::Cudnn;
        assert_eq!(cudnn, matches!(capability.0, 9 | 10));
    }
}

#[test]
fn long_rows_are_padded_where_cudnn_takes_them() {
    let _alone = MODE.lock().unwrap();
    let hopper = Kernels::torch(Some((9, 0)), "a test");
    let at = |length, most| hopper.row_length(Kind::BFloat16, 128, length, most);
    assert_eq!((at(1000, 4096), at(1024, 4096), at(1025, 4096), at(2047, 2047)), (1000, 1024, 1088, 2047));
    let ada = Kernels::torch(Some((8, 9)), "a test");
    assert_eq!(ada.row_length(Kind::BFloat16, 128, 1025, 4096), 1025);
    assert_eq!(hopper.attention(Kind::BFloat16, 256).kernel(2048, None), AttentionKernel::Flash);
    assert_eq!(hopper.attention(Kind::Float, 128).kernel(2048, None), AttentionKernel::Sdpa);
}

#[test]
fn rms_norm_and_its_gradient_by_every_weighting() {
    let k = kernels();
    let (eps, stored) = (1e-5, Tensor::randn([12], F32));
    let of = |kind| NormUse { eps, kind };
    let kinds = [(NormKind::Rms, 0.0), (NormKind::RmsF32, 0.0), (NormKind::RmsPlusOne, 1.0)];
    let shapes = [vec![5, 12], vec![5, 3, 12]];
    for (shape, (kind, shift)) in shapes.iter().flat_map(|s| kinds.iter().map(move |k| (s, *k))) {
        let weight = &stored + shift;
        // Heads that are a slice of a wider matrix, as q and k are.
        let x = Tensor::randn([5, 50], F32).narrow(1, 3, shape[1..].iter().product()).view(shape.as_slice());
        let (dy, residual) = (Tensor::randn(shape, F32), Tensor::randn(shape, F32));
        let a = leaf(&x);
        let rstd = (a.square().mean_dim([-1_i64].as_slice(), true, Kind::Float) + eps).rsqrt();
        let want = &weight * (&a * rstd);
        close(&format!("{kind:?} forward"), &k.rms_norm(&x, &stored, of(kind)).unwrap(), &want.detach());
        let g = grads(&want, &dy, &[&a]).remove(0);
        let dx = dy.copy();
        k.rms_norm_backward(&x, &stored, of(kind), &dx, None).unwrap();
        close(&format!("{kind:?} backward"), &dx, &g);
        let dx = dy.copy();
        k.rms_norm_backward(&x, &stored, of(kind), &dx, Some(&residual)).unwrap();
        close("backward with the residual", &dx, &(g + residual));
    }
}

#[test]
fn a_norm_rounds_before_or_after_its_weight_as_its_kind_says() {
    let k = kernels();
    let half = |t: Tensor| t.to_kind(Kind::BFloat16);
    let (x, w) = (half(Tensor::randn([9, 64], F32)), half(Tensor::randn([64], F32)));
    let eps = 1e-5;
    let x32 = x.to_kind(Kind::Float);
    let normed = &x32 * (x32.square().mean_dim([-1_i64].as_slice(), true, Kind::Float) + eps).rsqrt();
    let w32 = w.to_kind(Kind::Float);
    let want = [
        (NormKind::Rms, &w * half(normed.shallow_clone())),
        (NormKind::RmsF32, half(&w32 * &normed)),
        (NormKind::RmsPlusOne, half((&w32 + 1.0) * &normed)),
    ];
    let got = want.each_ref().map(|(kind, _)| k.rms_norm(&x, &w, NormUse { eps, kind: *kind }).unwrap());
    for ((kind, want), got) in want.iter().zip(&got) {
        assert!(got.equal(want) && got.kind() == Kind::BFloat16, "{kind:?}");
    }
    assert!(!got[0].equal(&got[1]), "the two roundings differ somewhere");
    assert!(k.rms_norm(&x, &w, NormUse { eps, kind: NormKind::Layer }).is_err());
}

#[test]
fn rope_is_rotate_half_and_its_gradient_turns_back() {
    let k = kernels();
    let (s, d) = (6, 8);
    let angles = Tensor::randn([s, d / 2], F32);
    let table = RopeTable { cos: angles.cos(), sin: angles.sin() };
    let both = |t: &Tensor| Tensor::cat(&[t, t], 1).unsqueeze(1);
    let turn = |x: &Tensor| {
        let halves = x.view([2, s, -1, d]).chunk(2, 3);
        let rotated = Tensor::cat(&[&(-&halves[1]), &halves[0]], 3);
        (x.view([2, s, -1, d]) * both(&table.cos) + rotated * both(&table.sin)).view_as(x)
    };
    let buffer = Tensor::randn([2 * s, 5 * d], F32);
    let heads = |at: i64, n: i64, of: &Tensor| of.narrow(1, at * d, n * d).view([2 * s, n, d]);
    let (q, key) = (leaf(&heads(0, 3, &buffer).contiguous()), leaf(&heads(3, 2, &buffer).contiguous()));
    let (want_q, want_k) = (turn(&q), turn(&key));
    let here = buffer.copy();
    k.rope(&heads(0, 3, &here), &heads(3, 2, &here), &table, false).unwrap();
    close("q", &heads(0, 3, &here), &want_q.detach());
    close("k", &heads(3, 2, &here), &want_k.detach());
    let (dq, dk) = (Tensor::randn(q.size(), F32), Tensor::randn(key.size(), F32));
    let g = [grads(&want_q, &dq, &[&q]).remove(0), grads(&want_k, &dk, &[&key]).remove(0)];
    k.rope(&dq, &dk, &table, true).unwrap();
    close("gradient of q", &dq, &g[0]);
    close("gradient of k", &dk, &g[1]);
}

#[test]
fn a_rotation_by_a_table_in_f32_rounds_once() {
    let k = kernels();
    let (s, d) = (5, 8);
    let angles = Tensor::randn([s, d / 2], F32);
    let exact = RopeTable { cos: angles.cos(), sin: angles.sin() };
    let rounded = RopeTable { cos: exact.cos.to_kind(Kind::BFloat16), sin: exact.sin.to_kind(Kind::BFloat16) };
    let x = Tensor::randn([s, 2, d], F32).to_kind(Kind::BFloat16);
    let turned = |table: &RopeTable, kind| {
        let (q, key) = (x.to_kind(kind).copy(), x.to_kind(kind).copy());
        k.rope(&q, &key, table, false).unwrap();
        assert!(q.equal(&key));
        q
    };
    let want = turned(&exact, Kind::Float).to_kind(Kind::BFloat16);
    let got = turned(&exact, Kind::BFloat16);
    assert!(got.equal(&want) && got.kind() == Kind::BFloat16);
    assert!(!turned(&rounded, Kind::BFloat16).equal(&want), "the other rounding differs somewhere");
}

#[test]
fn gated_activations_and_their_gradients() {
    let k = kernels();
    let (g, u, da) = (Tensor::randn([7, 11], F32) * 2.0, Tensor::randn([7, 11], F32), Tensor::randn([7, 11], F32));
    for act in [Act::Silu, Act::GeluTanh] {
        let (a, b) = (leaf(&g), leaf(&u));
        let y = if act == Act::Silu { a.silu() } else { a.gelu("tanh") } * &b;
        let want = grads(&y, &da, &[&a, &b]);
        let made = g.copy();
        k.glu(act, &made, &u).unwrap();
        close(&format!("{act:?} forward"), &made, &y.detach());
        for keep in [true, false] {
            let (dg, du, third) = (g.copy(), u.copy(), da.copy());
            k.glu_backward(act, &dg, &du, &third, keep).unwrap();
            close(&format!("{act:?} gate"), &dg, &want[0]);
            close(&format!("{act:?} up"), &du, &want[1]);
            close(&format!("{act:?} activation"), &third, &if keep { y.detach() } else { da.copy() });
        }
    }
    let clamped = Act::SiluClamped { alpha: 1.702, limit: 7.0 };
    assert!(k.glu(clamped, &g.copy(), &u).is_err() && k.glu_backward(clamped, &g, &u, &da, true).is_err());
}

#[test]
fn a_part_is_dropped_as_in_the_whole() {
    let k = kernels();
    let key = MaskKey::new(1, 2, 3, 4, 5);
    let x = Tensor::randn([10, 6], F32);
    let whole = dropout::dropout(&x, 0.4, key, 0);
    close("rows", &k.dropout(&x.narrow(0, 4, 3), 0.4, key, 24).unwrap(), &whole.narrow(0, 4, 3));
    let out = Tensor::randn([10, 6], F32);
    let sum = out.copy();
    k.dropout_add(&sum, &x, 0.4, key, 0).unwrap();
    close("sum", &sum, &(out + whole));
}

/// Without a cap, and with one.
const CAPS: [Option<f64>; 2] = [None, Some(3.0)];

#[test]
fn cross_entropy_and_its_gradient() {
    let k = kernels();
    let products = Tensor::randn([5, 13], F32) * 4.0;
    let labels = Tensor::from_slice(&[0_i64, 12, 3, 3, 7]);
    for cap in CAPS {
        let a = leaf(&products);
        let logits = cap.map_or(a.shallow_clone(), |cap| (&a / cap).tanh() * cap);
        let y = logits.cross_entropy_loss::<Tensor>(&labels, None, tch::Reduction::None, -100, 0.0);
        let want = grads(&y, &Tensor::ones([5], F32), &[&a]).remove(0);
        let kept = products.copy();
        close("losses alone", &k.cross_entropy(&kept, &labels, cap, false).unwrap(), &y.detach());
        close("products stay", &kept, &products);
        close("losses", &k.cross_entropy(&kept, &labels, cap, true).unwrap(), &y.detach());
        close(&format!("gradient, cap {cap:?}"), &kept, &want);
    }
}

#[test]
fn an_online_softmax_ends_at_the_whole_ones_numbers() {
    let k = kernels();
    let products = Tensor::randn([4, 20], F32) * 5.0;
    let labels = Tensor::from_slice(&[0_i64, 19, 7, 8]);
    for cap in CAPS {
        let logits = cap.map_or(products.copy(), |cap| (&products / cap).tanh() * cap);
        let slope = cap.map_or(products.ones_like(), |cap| 1.0 - (&products / cap).tanh().square());
        let rows = OnlineRows::new(4, Device::Cpu).unwrap();
        for (at, n) in [(0, 8), (8, 8), (16, 4)] {
            let part = products.narrow(1, at, n).contiguous();
            k.online_softmax(&part, &labels, &rows, at, cap, true).unwrap();
            let want = (logits.narrow(1, at, n) - rows.max.unsqueeze(1)).exp() * slope.narrow(1, at, n);
            close(&format!("exponentials, cap {cap:?}"), &part, &want);
        }
        close("maximum", &rows.max, &logits.amax([1_i64].as_slice(), false));
        close("log-sum-exp", &(&rows.max + rows.sum.log()), &logits.logsumexp([1_i64].as_slice(), false));
        close("label", &rows.picked, &logits.gather(1, &labels.unsqueeze(1), false).squeeze_dim(1));
    }
}

#[test]
fn rows_of_labels_come_from_their_chunks() {
    let k = kernels();
    let w = Tensor::randn([9, 5], F32);
    let labels = Tensor::from_slice(&[8_i64, 0, 4, 4]);
    let out = Tensor::zeros([4, 5], F32);
    k.gather_rows(&out, &w.narrow(0, 0, 4), &labels, 0).unwrap();
    k.gather_rows(&out, &w.narrow(0, 4, 5), &labels, 4).unwrap();
    close("rows", &out, &w.index_select(0, &labels));
}

#[test]
fn adamw_is_pytorchs_formula() {
    let k = kernels();
    let (p, m, v, g) =
        (Tensor::randn([9], F32), Tensor::randn([9], F32), Tensor::rand([9], F32), Tensor::randn([9], F32));
    let step = AdamStep { decay: 0.99, lerp: 0.1, beta2: 0.999, correction2: 0.5, eps: 1e-8, step: 0.01 };
    let (m1, v1) = (&m * 0.9 + &g * 0.1, &v * 0.999 + g.square() * 0.001);
    let want = &p * 0.99 - &m1 / (v1.sqrt() / 0.5 + 1e-8) * 0.01;
    k.adamw(&p, &m, &v, &g, step).unwrap();
    close("parameters", &p, &want);
    close("first moment", &m, &m1);
    close("second moment", &v, &v1);
}
