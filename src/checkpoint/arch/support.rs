//! What the passes of `model/` compute, told from the data alone.

use super::{Act, Arch, Grouped, Layer, Mixer, Mlp, Norm, NormKind, Over, Pairs, Reach, RopeScaling};

impl Arch {
    /// The first thing it asks for that the passes don't compute, by name; `None`: it can be trained.
    #[must_use]
    pub fn unsupported(&self) -> Option<&'static str> {
        let model = [
            (self.embed_scale.is_some(), "a factor on the embedding"),
            (self.layer_embedding.is_some(), "an embedding for each layer"),
            (self.logits.scale.is_some(), "a factor on the logits"),
            (self.logits.cap.is_some(), "capped logits"),
            (self.logits.bias, "a bias on the head"),
            (self.ropes.len() > 1, "more than one table of rotations"),
            (self.ropes.iter().any(|r| matches!(r.scaling, RopeScaling::Other { .. })), "its rule of rotation"),
        ];
        first(&model)
            .or_else(|| norm(&self.final_norm))
            .or_else(|| self.layers.iter().find_map(layer))
            .or_else(|| self.uneven().then_some("layers of unlike attention heads"))
    }

    /// Whether layers differ in the number or the width of heads, which the passes take to be the same for all.
    fn uneven(&self) -> bool {
        let shape = |l: &Layer| l.grouped().map(|g| (g.heads, g.kv_heads, g.head_dim));
        let Some(of_first) = self.layers.first().map(shape) else { return false };
        self.layers.iter().any(|l| shape(l) != of_first)
    }
}

fn first(list: &[(bool, &'static str)]) -> Option<&'static str> {
    list.iter().find(|(there, _)| *there).map(|(_, what)| *what)
}

fn norm(norm: &Norm) -> Option<&'static str> {
    match norm.kind {
        NormKind::Rms if norm.bias => Some("a norm with a bias"),
        NormKind::Rms => None,
        NormKind::RmsF32 => Some("a norm weighted in f32"),
        NormKind::RmsPlusOne => Some("a norm of one plus its weight"),
        NormKind::Layer => Some("LayerNorm"),
    }
}

fn layer(l: &Layer) -> Option<&'static str> {
    let shape = [
        (l.parallel, "halves side by side"),
        (l.attention.after.is_some() || l.mlp.after.is_some(), "norms after its halves"),
        (l.attention.before.is_none() || l.mlp.before.is_none(), "halves without a norm before"),
        (l.residual.is_some(), "a factor on residual sums"),
        (l.per_layer.is_some(), "an embedding for each layer"),
        (l.scalar.is_some(), "a factor on a layer's output"),
    ];
    let norms = [&l.attention.before, &l.mlp.before].into_iter().flatten();
    first(&shape)
        .or_else(|| norms.into_iter().find_map(norm))
        .or_else(|| mixer(&l.attention.op))
        .or_else(|| mlp(&l.mlp.op))
}

fn mixer(mixer: &Mixer) -> Option<&'static str> {
    match mixer {
        Mixer::Grouped(g) => grouped(g),
        Mixer::Latent(_) => Some("latent attention"),
        Mixer::Delta(_) => Some("a gated delta rule"),
    }
}

fn grouped(g: &Grouped) -> Option<&'static str> {
    let usual = (g.head_dim as f64).powf(-0.5);
    let list = [
        (matches!(g.qkv, super::Qkv::Fused(_)), "fused q, k and v"),
        (g.v_norm, "normed values"),
        (g.scale.to_bits() != usual.to_bits(), "a scale of its own on scores"),
        (g.cap.is_some(), "capped scores"),
        (matches!(g.reach, Reach::Chunk(_)), "attention in chunks"),
        (g.sinks.is_some(), "attention sinks"),
        (g.gated, "gated attention"),
        (g.growth.is_some(), "queries that grow with their place"),
        (g.kv != super::Kv::Own, "shared keys and values"),
        (g.qk_norm.is_some_and(|n| n.over != Over::Head), "norms over all heads of queries and keys"),
        (g.qk_norm.is_some_and(|n| n.after_rope), "norms of rotated queries and keys"),
    ];
    let rope = match &g.rope {
        None => Some("layers without rotation"),
        Some(r) if r.pairs == Pairs::Neighbours => Some("rotation of neighbours"),
        Some(r) if r.width != g.head_dim => Some("rotation of a part of each head"),
        Some(r) if r.f32 => Some("rotation in f32"),
        Some(_) => None,
    };
    let norms = g.qk_norm.iter().flat_map(|n| [&n.q, &n.k]);
    first(&list).or(rope).or_else(|| norms.into_iter().find_map(norm))
}

fn mlp(mlp: &Mlp) -> Option<&'static str> {
    match mlp {
        Mlp::Experts(_) => Some("a mixture of experts"),
        Mlp::Plain(_) => Some("a feed-forward without a gate"),
        Mlp::Gated(g) if g.act != Act::Silu => Some("an activation other than SiLU"),
        Mlp::Gated(g) if matches!(g.gate_up, super::GateUp::Fused(_)) => Some("fused gate and up"),
        Mlp::Gated(_) => None,
    }
}
