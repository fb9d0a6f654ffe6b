//! A layer: two halves on a residual stream. Its list of tensors is the one that everything else reads.

use super::attention::Mixer;
use super::mlp::Mlp;
use super::norm::Norm;
use super::tensor::{Input, Need, NormAt, Part, Role, Spec, Specs};

/// One half: x + after(op(before(x))).
#[derive(Clone, Debug, PartialEq)]
pub struct Sub<T> {
    /// Norm of what it reads; `None`: it reads the residual stream (olmo2), or the other half's norm (phi).
    pub before: Option<Norm>,
    /// What it computes.
    pub op: T,
    /// Norm of what it gives.
    pub after: Option<Norm>,
}

/// What a layer adds from the per-layer embedding (gemma4), after both halves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerLayer {
    /// Width of a layer's embedding.
    pub width: usize,
    /// Norm of what it gives.
    pub after: Norm,
}

/// One decoder layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// The half that mixes tokens.
    pub attention: Sub<Mixer>,
    /// The half that treats each token alone.
    pub mlp: Sub<Mlp>,
    /// Both halves read the attention half's norm of the layer's input (phi, cohere).
    pub parallel: bool,
    /// Factor on what each half adds (granite).
    pub residual: Option<f64>,
    /// What it adds from the per-layer embedding.
    pub per_layer: Option<PerLayer>,
    /// Name of a factor on its output (gemma4).
    pub scalar: Option<&'static str>,
}

/// The direction that a layer is passed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// From input to output.
    Forward,
    /// The same on the way down, without what no gradient depends on.
    Recompute,
    /// From the gradient of the output to that of the input.
    Back,
}

impl Layer {
    /// Every tensor it may have, in order. Parts count from 0 without a gap.
    #[must_use]
    pub fn tensors(&self, hidden: usize) -> Vec<Spec> {
        let hidden = hidden as u64;
        let mut specs = Specs::default();
        let norm = |norm: &Option<Norm>, at, specs: &mut Specs| {
            if let Some(norm) = norm {
                norm.tensors(at, &[hidden], specs);
            }
        };
        norm(&self.attention.before, NormAt::AttnBefore, &mut specs);
        match &self.attention.op {
            Mixer::Grouped(g) => g.tensors(hidden, &mut specs),
            Mixer::Latent(l) => l.tensors(hidden, &mut specs),
            Mixer::Delta(d) => d.tensors(hidden, &mut specs),
        }
        norm(&self.attention.after, NormAt::AttnAfter, &mut specs);
        // The first part ends with the norm that the second half begins with.
        norm(&self.mlp.before, NormAt::MlpBefore, &mut specs);
        self.mlp.op.tensors(hidden, &mut specs);
        norm(&self.mlp.after, NormAt::MlpAfter, &mut specs);
        if let Some(of) = &self.per_layer {
            let width = of.width as u64;
            specs.matrix(Role::PerLayerGate, "per_layer_input_gate", [width, hidden], Input::PerLayer);
            specs.matrix(Role::PerLayerUp, "per_layer_projection", [hidden, width], Input::PerLayer);
            of.after.weight(Role::PerLayerAfter, &[hidden], &mut specs);
        }
        if let Some(name) = self.scalar {
            specs.vector(Role::Scalar, name.into(), &[1], Need::Must);
        }
        specs.list
    }

    /// How many parts it streams in.
    #[must_use]
    pub fn parts(&self) -> usize {
        let mlp = match &self.mlp.op {
            Mlp::Gated(g) => match g.gate_up {
                super::mlp::GateUp::Split(_) => 3,
                super::mlp::GateUp::Fused(_) => 2,
            },
            Mlp::Plain(_) | Mlp::Experts(_) => 2,
        };
        1 + mlp
    }

    /// The parts that a pass uses, in order. Nothing depends on the last one's output, unless a norm or a sum of the
    /// layer's end reads it: only then a recompute has it.
    #[must_use]
    pub fn uses(&self, pass: Pass) -> Vec<Part> {
        let all = (0..self.parts() as u16).map(Part);
        let reads_end = self.mlp.after.is_some() || self.per_layer.is_some() || self.scalar.is_some();
        match pass {
            Pass::Forward => all.collect(),
            Pass::Recompute if reads_end => all.collect(),
            Pass::Recompute => all.take(self.parts() - 1).collect(),
            Pass::Back => all.rev().collect(),
        }
    }
}
