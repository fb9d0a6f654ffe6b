//! One block with random weights, adapter, input and output gradient: run by formulas, and by autograd over plain
//! operators as the reference.

use crate::support::fixture::Model;
use crate::walk::{host, open, random_adapter};
use blockstream_tui::checkpoint::{Checkpoint, Part, Role};
use blockstream_tui::config::LoraSection;
use blockstream_tui::device::shim;
use blockstream_tui::error::Result;
use blockstream_tui::model::dropout::{MaskKey, dropout};
use blockstream_tui::model::rope::RopeTable;
use blockstream_tui::model::{
    Adapter, AdapterLayout, BlockContext, BlockWeights, GiveBack, Kernels, Weights, block_backward, block_forward,
};
use tch::{Device, Kind, Tensor};

/// The block under test: the second of the fixture's.
const BLOCK: usize = 1;
/// Seed, step and micro-batch of its dropout masks.
const MASK: (u64, u64, usize) = (9, 4, 1);

/// Each bias and the weight it belongs to.
const BIASES: [(Role, Role); 7] = [
    (Role::QBias, Role::Q),
    (Role::KBias, Role::K),
    (Role::VBias, Role::V),
    (Role::OBias, Role::O),
    (Role::GateBias, Role::Gate),
    (Role::UpBias, Role::Up),
    (Role::DownBias, Role::Down),
];

/// Output, gradient of the input, and the adapter's flat gradient, on the host.
pub struct Out {
    pub y: Vec<f32>,
    pub gx: Vec<f32>,
    pub grads: Vec<f32>,
}

/// How to run the block.
#[derive(Clone, Copy)]
pub struct How<'a> {
    pub kernels: &'a Kernels,
    pub kind: Kind,
    pub device: Device,
    pub mlp_chunk: usize,
    pub needs_input: bool,
}

impl How<'_> {
    pub fn cpu() -> How<'static> {
        let kernels = Kernels::of(Device::Cpu);
        How { kernels, kind: Kind::Float, device: Device::Cpu, mlp_chunk: 0, needs_input: true }
    }
}

/// Hands out the tensors of a use's parts alone and notes the order.
pub struct Logged {
    tensors: Vec<(Role, Tensor)>,
    pub log: Vec<(&'static str, Part)>,
}

impl Weights for Logged {
    fn with(
        &mut self,
        parts: &[Part],
        order: GiveBack,
        use_them: &mut dyn FnMut(&BlockWeights) -> Result<()>,
    ) -> Result<()> {
        self.log.extend(parts.iter().map(|&p| ("take", p)));
        let of_parts = self.tensors.iter().filter(|(r, _)| parts.contains(&r.part()));
        use_them(&BlockWeights::from_tensors(of_parts.map(|(r, t)| (*r, t.shallow_clone()))))?;
        let mut given = parts.to_vec();
        if order == GiveBack::LastTaken {
            given.reverse();
        }
        self.log.extend(given.into_iter().map(|p| ("done", p)));
        Ok(())
    }
}

pub struct Case {
    checkpoint: Checkpoint,
    layout: AdapterLayout,
    flat: Vec<f32>,
    rows: i64,
    len: i64,
    /// A bias on all seven projections, whatever the family has.
    pub biases: bool,
    _dir: tempfile::TempDir,
}

impl Case {
    pub fn new(model: Model, lora: &LoraSection, rows: i64, len: i64) -> Case {
        let dir = tempfile::tempdir().unwrap();
        model.write(dir.path());
        let checkpoint = open(dir.path());
        let layout = AdapterLayout::new(&checkpoint, lora).unwrap();
        let flat = random_adapter(&layout);
        Case { checkpoint, layout, flat, rows, len, biases: false, _dir: dir }
    }

    fn tensors(&self) -> Vec<(Role, Tensor)> {
        tch::manual_seed(11);
        let stored = |role: Role| {
            let info = self.checkpoint.block_tensor(BLOCK, role)?;
            Some(info.shape.iter().map(|&d| d as i64).collect::<Vec<i64>>())
        };
        let of_role = |role: Role| {
            let of_weight = || {
                let (_, weight) = BIASES.into_iter().find(|(bias, _)| *bias == role)?;
                Some(stored(weight)?[..1].to_vec())
            };
            let shape = stored(role).or_else(|| of_weight().filter(|_| self.biases))?;
            let random = Tensor::randn(&shape, (Kind::Float, Device::Cpu));
            let norm = [Role::InputNorm, Role::PostNorm, Role::QNorm, Role::KNorm].contains(&role);
            Some((role, if norm { random * 0.1 + 1.0 } else { random * 0.15 }))
        };
        Role::ALL.into_iter().filter_map(of_role).collect()
    }

    pub fn weights(&self, kind: Kind, device: Device) -> Logged {
        let place = |(role, t): (Role, Tensor)| (role, t.to_kind(kind).to_device(device));
        Logged { tensors: self.tensors().into_iter().map(place).collect(), log: Vec::new() }
    }

    /// Input and output gradient, `[B, S, H]`.
    fn ends(&self) -> (Tensor, Tensor) {
        tch::manual_seed(12);
        let random = || {
            let shape = [self.rows, self.len, self.checkpoint.arch.hidden as i64];
            Tensor::randn(shape, (Kind::Float, Device::Cpu))
        };
        (random(), random())
    }

    /// By formulas.
    pub fn run(&self, how: How<'_>) -> (Out, Logged) {
        let mut weights = self.weights(how.kind, how.device);
        let adapter = Adapter::new(self.layout.clone(), &self.flat, how.kind, how.device);
        let rope = RopeTable::new(&self.checkpoint.arch, 0, self.len as usize, how.kind, how.device);
        let context = BlockContext {
            arch: &self.checkpoint.arch,
            kernels: how.kernels,
            rope: &rope,
            block: BLOCK,
            adapter: Some(adapter.block(BLOCK, Some(MASK))),
            tile: how.mlp_chunk,
            needs_input: how.needs_input,
        };
        let (x, gy) = self.ends();
        let place = |t: Tensor| t.to_kind(how.kind).to_device(how.device);
        let (x, gy) = (place(x), place(gy));
        let (x0, gy0) = (x.copy(), gy.copy());
        let y = block_forward(&x, &mut weights, &context, None).unwrap();
        let grads = Tensor::zeros([self.layout.len as i64], (Kind::Float, how.device));
        let gx = block_backward(&x, &gy, &mut weights, &context, &grads).unwrap();
        assert_eq!(gx.is_some(), how.needs_input);
        assert_eq!(host(&x), host(&x0), "the input is kept");
        assert_eq!(host(&gy), host(&gy0), "the output's gradient is kept");
        let gx = gx.map(|g| host(&g)).unwrap_or_default();
        (Out { y: host(&y), gx, grads: host(&grads) }, weights)
    }

    /// By autograd in f32 on the CPU.
    pub fn autograd(&self) -> Out {
        let weights: Vec<Option<Tensor>> =
            Role::ALL.iter().map(|r| self.tensors().into_iter().find(|(of, _)| of == r).map(|(_, t)| t)).collect();
        let get = |role: Role| weights[role as usize].as_ref();
        let arch = &self.checkpoint.arch;
        let flat = Tensor::from_slice(&self.flat);
        let targets = &self.layout.targets[self.layout.of_block(BLOCK)];
        let leaf = |t: &Tensor| t.detach().copy().set_requires_grad(true);
        let cut = |at: usize, rows: usize, cols: usize| {
            leaf(&flat.narrow(0, at as i64, (rows * cols) as i64).view([rows as i64, cols as i64]))
        };
        let r = self.layout.r;
        let leaves: Vec<(Tensor, Tensor)> =
            targets.iter().map(|t| (cut(t.a, r, t.d_in), cut(t.b, t.d_out, r))).collect();
        let project = |role: Role, bias: Role, x: &Tensor| {
            let y = x.linear(get(role).unwrap(), get(bias));
            let Some(i) = targets.iter().position(|t| t.role == role) else { return y };
            let x = match self.layout.dropout {
                0.0 => x.shallow_clone(),
                p => dropout(x, p, MaskKey::new(MASK.0, MASK.1, MASK.2, BLOCK, role as usize), 0),
            };
            y + x.matmul(&leaves[i].0.tr()).matmul(&leaves[i].1.tr()) * self.layout.scale
        };
        let norm = |x: &Tensor, w: &Tensor| {
            w * (x * (x.square().mean_dim([-1_i64].as_slice(), true, Kind::Float) + arch.norm_eps).rsqrt())
        };
        let (rows, s, d) = (self.rows, self.len, arch.head_dim as i64);
        let rope = RopeTable::new(arch, 0, s as usize, Kind::Float, Device::Cpu);
        let (cos, sin) = (Tensor::cat(&[&rope.cos, &rope.cos], 1), Tensor::cat(&[&rope.sin, &rope.sin], 1));
        let turn = |x: &Tensor| {
            let halves = x.chunk(2, -1);
            x * &cos + Tensor::cat(&[&(-&halves[1]), &halves[0]], -1) * &sin
        };
        let group = (arch.n_heads / arch.n_kv_heads) as i64;
        let heads = |t: Tensor, w: Option<&Tensor>| {
            let t = t.view([rows, s, -1, d]);
            w.map_or(t.shallow_clone(), |w| norm(&t, w)).transpose(1, 2)
        };

        let (x0, gy) = self.ends();
        let x0 = leaf(&x0);
        let h = norm(&x0, get(Role::InputNorm).unwrap());
        let q = turn(&heads(project(Role::Q, Role::QBias, &h), get(Role::QNorm)));
        let k = turn(&heads(project(Role::K, Role::KBias, &h), get(Role::KNorm)));
        let v = heads(project(Role::V, Role::VBias, &h), None);
        let (k, v) = (k.repeat_interleave_self_int(group, 1, None), v.repeat_interleave_self_int(group, 1, None));
        let at = Tensor::arange(s, (Kind::Int64, Device::Cpu));
        let distance = at.unsqueeze(1) - at.unsqueeze(0);
        let window = arch.windows[BLOCK].map_or(s, |w| w as i64);
        let hidden = distance.lt(0).logical_or(&distance.ge(window));
        let scores = (q.matmul(&k.transpose(2, 3)) / (d as f64).sqrt()).masked_fill(&hidden, f64::NEG_INFINITY);
        let out = scores.softmax(-1, Kind::Float).matmul(&v).transpose(1, 2).reshape([rows, s, -1]);
        let x = &x0 + project(Role::O, Role::OBias, &out);
        let h = norm(&x, get(Role::PostNorm).unwrap());
        let act = project(Role::Gate, Role::GateBias, &h).silu() * project(Role::Up, Role::UpBias, &h);
        let y = &x + project(Role::Down, Role::DownBias, &act);

        let mut wanted: Vec<&Tensor> = leaves.iter().flat_map(|(a, b)| [a, b]).collect();
        wanted.push(&x0);
        let mut got = shim::grad(&[&y], &[&gy], &wanted).unwrap();
        let gx = host(&got.pop().unwrap().unwrap());
        let mut grads = vec![0.0; self.layout.len];
        for (place, g) in targets.iter().flat_map(|t| [t.a, t.b]).zip(got) {
            let g = host(&g.unwrap());
            grads[place..place + g.len()].copy_from_slice(&g);
        }
        Out { y: host(&y.detach()), gx, grads }
    }
}
