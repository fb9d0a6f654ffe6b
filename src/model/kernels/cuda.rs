//! The operations as one fused kernel each, from `fused.cu`.

use super::{AdamStep, Kernels, NormUse, OnlineRows, Ops, Scoring, Tile, no_act};
use crate::checkpoint::arch::Act;
use crate::device::nvrtc::{self, Arg, Program};
use crate::error::{Error, Result};
use crate::model::dropout::{self, MaskKey};
use crate::model::rope::RopeTable;
use std::sync::OnceLock;
use tch::{Device, Kind, Tensor};

const SOURCE: &str = include_str!("fused.cu");
const TYPED: [&str; 10] = [
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "glu",
    "glu_backward",
    "attend",
    "dropout",
    "cross_entropy",
    "online_softmax",
    "gather_rows",
];
const TYPES: [&str; 3] = ["f32", "bf16", "f16"];
/// Threads of an elementwise block.
const THREADS: i64 = 256;
/// Most threads of a block that reduces a row.
const ROW_THREADS: i64 = 512;

/// The operations of GPU `index`, compiled at the first call. A second GPU in one process computes by torch operators.
pub fn kernels(index: usize) -> &'static Kernels {
    static FIRST: OnceLock<(usize, Kernels)> = OnceLock::new();
    static OTHER: OnceLock<Kernels> = OnceLock::new();
    let (of, first) = FIRST.get_or_init(|| (index, make(index)));
    if *of == index { first } else { OTHER.get_or_init(|| Kernels::torch(None, "a second GPU in one process")) }
}

fn make(index: usize) -> Kernels {
    let mut names: Vec<String> = TYPED.iter().flat_map(|k| TYPES.iter().map(move |t| format!("{k}_{t}"))).collect();
    names.push("adamw".into());
    match Program::compile(index, SOURCE, &names) {
        Ok(program) => Kernels {
            capability: Some(program.capability),
            described: format!("fused (NVRTC, {})", program.arch),
            ops: Box::new(Fused(program)),
            fused: true,
        },
        Err(why) => Kernels::torch(nvrtc::capability(index).ok(), &why),
    }
}

/// The compiled kernels.
#[derive(Debug)]
struct Fused(Program);

/// Elements of a 16-byte access.
fn pack(kind: Kind) -> i64 {
    if kind == Kind::Float { 4 } else { 8 }
}

/// Whether every tensor starts on 16 bytes and every count of elements is a whole number of 16-byte accesses.
fn wide(kind: Kind, tensors: &[&Tensor], counts: &[i64]) -> bool {
    tensors.iter().all(|t| (t.data_ptr() as usize).is_multiple_of(16)) && counts.iter().all(|n| n % pack(kind) == 0)
}

/// Blocks of `each` that cover `n`.
fn blocks(n: i64, each: i64) -> i64 {
    (n + each - 1) / each
}

/// Threads for a row of `n`: one access each where that is few enough, whole warps.
fn row_threads(n: i64, kind: Kind, wide: bool) -> u32 {
    let accesses = if wide { n / pack(kind) } else { n };
    (blocks(accesses, 32) * 32).clamp(32, ROW_THREADS) as u32
}

/// Tokens, heads, width of a head, and elements from token to token of rows `[T, n]` or heads `[T, heads, n]`.
fn rows_of(x: &Tensor) -> (i64, i64, i64, i64) {
    let (size, stride) = (x.size(), x.stride());
    let (heads, n) = match size[..] {
        [_, n] => (1, n),
        [_, heads, n] => (heads, n),
        _ => panic!("rows are [T, n] or [T, heads, n], not {size:?}"),
    };
    let dense = stride[size.len() - 1] == 1 && (heads == 1 || stride[1] == n);
    assert!(dense, "a token's heads must lie side by side: {size:?} by {stride:?}");
    (size[0], heads, n, stride[0])
}

fn dense(tensors: &[&Tensor]) {
    for t in tensors {
        assert!(t.is_contiguous(), "a dense tensor is needed: {:?} by {:?}", t.size(), t.stride());
    }
}

/// More tokens than any row has: no window.
const NO_WINDOW: i64 = 1 << 40;

/// The number of an activation in fused.cu.
fn number(act: Act) -> Result<i32> {
    match act {
        Act::Silu => Ok(0),
        Act::GeluTanh => Ok(1),
        Act::SiluClamped { .. } => Err(no_act()),
    }
}

/// A cap for fused.cu, where 0 is none.
fn cap_arg(cap: Option<f64>) -> Arg<'static> {
    Arg::F32(cap.unwrap_or(0.0) as f32)
}

impl Fused {
    /// Queues kernel `name` for the type of `like`.
    fn run(&self, name: &str, like: &Tensor, grid: i64, block: u32, args: &[Arg<'_>]) -> Result<()> {
        let suffix = match like.kind() {
            Kind::Float => "f32",
            Kind::BFloat16 => "bf16",
            Kind::Half => "f16",
            other => return Err(Error::device(format!("no kernel '{name}' for {other:?}"))),
        };
        self.queue(&format!("{name}_{suffix}"), like, grid, block, args)
    }

    fn queue(&self, name: &str, like: &Tensor, grid: i64, block: u32, args: &[Arg<'_>]) -> Result<()> {
        let device = like.device();
        assert_eq!(device, Device::Cuda(self.0.device()), "kernel '{name}' is another device's");
        for a in args {
            if let Arg::Tensor(t) = a {
                assert_eq!(t.device(), device, "kernel '{name}': an argument is on another device");
            }
        }
        // SAFETY: every caller in this file passes the parameters of fused.cu in order, with extents taken from the
        // tensors themselves; all are on this GPU, and libtorch frees memory in the order of the stream.
        unsafe { self.0.launch(name, grid, block, args) }
    }

    /// Queues an elementwise kernel over `n` elements, `per` of them a thread.
    fn each(&self, name: &str, like: &Tensor, n: i64, wide: bool, args: &[Arg<'_>]) -> Result<()> {
        let per = if wide { pack(like.kind()) } else { 1 };
        self.run(name, like, blocks(n, THREADS * per), THREADS as u32, args)
    }

    fn masked(&self, out: &Tensor, x: &Tensor, add: bool, p: f64, key: MaskKey, first: u64) -> Result<()> {
        dense(&[out, x]);
        let n = x.numel() as i64;
        let wide = wide(x.kind(), &[out, x], &[n]);
        // The mask's value as torch's operators make it: 1 times the scale, in the type of x.
        let scale = match x.kind() {
            Kind::BFloat16 => half::bf16::from_f32((1.0 / (1.0 - p)) as f32).to_f32(),
            Kind::Half => half::f16::from_f32((1.0 / (1.0 - p)) as f32).to_f32(),
            _ => (1.0 / (1.0 - p)) as f32,
        };
        let args = [
            Arg::Tensor(out),
            Arg::Tensor(x),
            Arg::I32(add.into()),
            Arg::I64(n),
            Arg::U64(key.bits()),
            Arg::U64(first),
            Arg::U64(dropout::threshold(p) as u64),
            Arg::F32(scale),
            Arg::I32(wide.into()),
        ];
        self.each("dropout", x, n, wide, &args)
    }
}

impl Ops for Fused {
    fn rms_norm(&self, x: &Tensor, weight: &Tensor, of: NormUse) -> Result<Tensor> {
        let (tokens, heads, n, stride) = rows_of(x);
        let (shift, early) = of.weighting()?;
        let out = Tensor::f_empty(x.size(), (x.kind(), x.device()))?;
        let wide = wide(x.kind(), &[x, weight, &out], &[n, stride]);
        let args = [
            Arg::Tensor(&out),
            Arg::Tensor(x),
            Arg::Tensor(weight),
            Arg::I64(n),
            Arg::I64(heads),
            Arg::I64(stride),
            Arg::F32(of.eps as f32),
            Arg::F32(shift as f32),
            Arg::I32(early.into()),
            Arg::I32(wide.into()),
        ];
        self.run("rms_norm", x, tokens * heads, row_threads(n, x.kind(), wide), &args)?;
        Ok(out)
    }

    fn rms_norm_backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        of: NormUse,
        dy: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<()> {
        let (shift, _) = of.weighting()?;
        let (tokens, heads, n, stride) = rows_of(x);
        let (_, _, _, dy_stride) = rows_of(dy);
        assert_eq!(x.size(), dy.size(), "a gradient is shaped as its tensor");
        let mut tensors = vec![x, weight, dy];
        if let Some(residual) = residual {
            assert_eq!(x.numel(), residual.numel(), "the residual's gradient is shaped as the tensor");
            dense(&[residual]);
            tensors.push(residual);
        }
        let wide = wide(x.kind(), &tensors, &[n, stride, dy_stride]);
        let args = [
            Arg::Tensor(dy),
            Arg::Tensor(x),
            Arg::Tensor(weight),
            residual.map_or(Arg::Null, Arg::Tensor),
            Arg::I64(n),
            Arg::I64(heads),
            Arg::I64(stride),
            Arg::I64(dy_stride),
            Arg::F32(of.eps as f32),
            Arg::F32(shift as f32),
            Arg::I32(wide.into()),
        ];
        self.run("rms_norm_backward", x, tokens * heads, row_threads(n, x.kind(), wide), &args)
    }

    fn rope(&self, q: &Tensor, k: &Tensor, table: &RopeTable, inverse: bool) -> Result<()> {
        let (tokens, q_heads, width, q_stride) = rows_of(q);
        let (_, k_heads, _, k_stride) = rows_of(k);
        let half = width / 2;
        dense(&[&table.cos, &table.sin]);
        let fits = |t: &Tensor| t.kind() == q.kind() || t.kind() == Kind::Float;
        assert!(
            fits(&table.cos) && table.sin.kind() == table.cos.kind(),
            "a rotary table is of the heads' type or in f32"
        );
        assert_eq!(table.cos.size(), [table.len(), half], "the rotary table is of another head width");
        let wide = wide(q.kind(), &[q, k, &table.cos, &table.sin], &[half, q_stride, k_stride]);
        let per = if wide { pack(q.kind()) } else { 1 };
        let threads = tokens * (q_heads + k_heads) * (half / per);
        if threads > i64::from(i32::MAX) {
            return Err(Error::device(format!("{tokens} tokens are too many for one micro-batch")));
        }
        let args = [
            Arg::Tensor(q),
            Arg::I64(q_heads),
            Arg::I64(q_stride),
            Arg::Tensor(k),
            Arg::I64(k_heads),
            Arg::I64(k_stride),
            Arg::Tensor(&table.cos),
            Arg::Tensor(&table.sin),
            Arg::I64(tokens),
            Arg::I64(table.len()),
            Arg::I64(half),
            Arg::F32(if inverse { -1.0 } else { 1.0 }),
            Arg::I32((table.cos.kind() != q.kind()).into()),
            Arg::I32(wide.into()),
        ];
        self.run("rope", q, blocks(threads, THREADS), THREADS as u32, &args)
    }

    fn glu(&self, act: Act, gate: &Tensor, up: &Tensor) -> Result<()> {
        dense(&[gate, up]);
        let n = gate.numel() as i64;
        let wide = wide(gate.kind(), &[gate, up], &[n]);
        let act = Arg::I32(number(act)?);
        let args = [Arg::Tensor(gate), Arg::Tensor(up), act, Arg::I64(n), Arg::I32(wide.into())];
        self.each("glu", gate, n, wide, &args)
    }

    fn glu_backward(&self, act: Act, gate: &Tensor, up: &Tensor, da: &Tensor, keep: bool) -> Result<()> {
        dense(&[gate, up, da]);
        let n = gate.numel() as i64;
        let wide = wide(gate.kind(), &[gate, up, da], &[n]);
        let args = [
            Arg::Tensor(gate),
            Arg::Tensor(up),
            Arg::Tensor(da),
            Arg::I32(number(act)?),
            Arg::I32(keep.into()),
            Arg::I64(n),
            Arg::I32(wide.into()),
        ];
        self.each("glu_backward", gate, n, wide, &args)
    }

    fn attend(&self, products: &Tensor, d: Option<&Tensor>, of: Scoring, tile: Tile) -> Result<()> {
        let (count, rows, n) = products.size3()?;
        let mut tensors = vec![products];
        if let Some(d) = d {
            assert_eq!(products.size(), d.size(), "a gradient is shaped as its tensor");
            tensors.push(d);
        }
        dense(&tensors);
        let wide = wide(products.kind(), &tensors, &[n]);
        let args = [
            Arg::Tensor(products),
            d.map_or(Arg::Null, Arg::Tensor),
            Arg::F32(of.scale as f32),
            cap_arg(of.cap),
            Arg::I64(of.window.map_or(NO_WINDOW, |w| (w as i64).min(NO_WINDOW))),
            Arg::I64(tile.query),
            Arg::I64(tile.key),
            Arg::I64(tile.group),
            Arg::I64(rows),
            Arg::I64(n),
            Arg::I32(wide.into()),
        ];
        self.run("attend", products, count * rows, row_threads(n, products.kind(), wide), &args)
    }

    fn dropout(&self, x: &Tensor, p: f64, key: MaskKey, first: u64) -> Result<Tensor> {
        let out = Tensor::f_empty(x.size(), (x.kind(), x.device()))?;
        self.masked(&out, x, false, p, key, first)?;
        Ok(out)
    }

    fn dropout_add(&self, out: &Tensor, x: &Tensor, p: f64, key: MaskKey, first: u64) -> Result<()> {
        self.masked(out, x, true, p, key, first)
    }

    fn cross_entropy(&self, logits: &Tensor, labels: &Tensor, cap: Option<f64>, grad: bool) -> Result<Tensor> {
        dense(&[logits, labels]);
        let (rows, n) = logits.size2()?;
        let loss = Tensor::f_empty([rows], (Kind::Float, logits.device()))?;
        let wide = wide(logits.kind(), &[logits], &[n]);
        let args = [
            Arg::Tensor(logits),
            Arg::Tensor(labels),
            Arg::Tensor(&loss),
            cap_arg(cap),
            Arg::I32(grad.into()),
            Arg::I64(n),
            Arg::I32(wide.into()),
        ];
        self.run("cross_entropy", logits, rows, row_threads(n, logits.kind(), wide), &args)?;
        Ok(loss)
    }

    fn online_softmax(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        rows: &OnlineRows,
        first: i64,
        cap: Option<f64>,
        grad: bool,
    ) -> Result<()> {
        dense(&[logits, labels, &rows.max, &rows.sum, &rows.picked, &rows.scale]);
        let (count, n) = logits.size2()?;
        let wide = wide(logits.kind(), &[logits], &[n]);
        let args = [
            Arg::Tensor(logits),
            Arg::Tensor(labels),
            Arg::Tensor(&rows.max),
            Arg::Tensor(&rows.sum),
            Arg::Tensor(&rows.picked),
            Arg::Tensor(&rows.scale),
            cap_arg(cap),
            Arg::I32(grad.into()),
            Arg::I64(first),
            Arg::I64(n),
            Arg::I32(wide.into()),
        ];
        self.run("online_softmax", logits, count, row_threads(n, logits.kind(), wide), &args)
    }

    fn gather_rows(&self, out: &Tensor, w: &Tensor, labels: &Tensor, first: i64) -> Result<()> {
        dense(&[out, w, labels]);
        let (rows, n) = w.size2()?;
        let wide = wide(w.kind(), &[out, w], &[n]);
        let args = [
            Arg::Tensor(out),
            Arg::Tensor(w),
            Arg::Tensor(labels),
            Arg::I64(first),
            Arg::I64(rows),
            Arg::I64(n),
            Arg::I32(wide.into()),
        ];
        self.run("gather_rows", w, out.size()[0], row_threads(n, w.kind(), wide), &args)
    }

    fn adamw(&self, p: &Tensor, m: &Tensor, v: &Tensor, g: &Tensor, step: AdamStep) -> Result<()> {
        dense(&[p, m, v, g]);
        let n = p.numel() as i64;
        assert!([p, m, v, g].iter().all(|t| t.kind() == Kind::Float && t.numel() as i64 == n), "AdamW is f32");
        let args = [
            Arg::Tensor(p),
            Arg::Tensor(m),
            Arg::Tensor(v),
            Arg::Tensor(g),
            Arg::I64(n),
            Arg::F32(step.decay as f32),
            Arg::F32(step.lerp as f32),
            Arg::F32(step.beta2 as f32),
            Arg::F32((1.0 - step.beta2) as f32),
            // libtorch divides by a scalar on a GPU by multiplying with its reciprocal in f32.
            Arg::F32(1.0 / step.correction2 as f32),
            Arg::F32(step.eps as f32),
            Arg::F32(step.step as f32),
        ];
        self.queue("adamw", p, blocks(n, THREADS), THREADS as u32, &args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_compiles_for_every_card_where_nvrtc_is() {
        let _ = crate::device::shim::init();
        for arch in ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_120"] {
            match nvrtc::cubin(SOURCE, arch) {
                Ok(code) => assert!(code.len() > 10_000, "{arch}: {} bytes", code.len()),
                Err(why) if why.contains("not found") => return println!("did not run: {why}"),
                Err(why) => panic!("{arch}: {why}"),
            }
        }
    }
}
