//! The list of a layer's tensors, its parts and their uses.

use super::*;

const HIDDEN: usize = 8;

fn grouped() -> Grouped {
    let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(|n| Proj::together(n, "q, k and v"));
    Grouped {
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        qkv: Qkv::Split(qkv),
        out: Proj::maybe("self_attn.o_proj"),
        qk_norm: None,
        v_norm: false,
        rope: Some(RopeUse { table: 0, width: 6, pairs: Pairs::Halves, f32: false }),
        scale: 6f64.powf(-0.5),
        cap: None,
        reach: Reach::Full,
        sinks: None,
        gated: false,
        growth: None,
        kv: Kv::Own,
    }
}

fn gated() -> Gated {
    Gated {
        width: 16,
        act: Act::Silu,
        gate_up: GateUp::Split([Proj::new("mlp.gate_proj"), Proj::new("mlp.up_proj")]),
        down: Proj::new("mlp.down_proj"),
    }
}

fn norm(name: &'static str) -> Option<Norm> {
    Some(Norm::new(name, 1e-5, NormKind::Rms))
}

fn layer(mixer: Mixer, mlp: Mlp) -> Layer {
    Layer {
        attention: Sub { before: norm("input_layernorm"), op: mixer, after: None },
        mlp: Sub { before: norm("post_attention_layernorm"), op: mlp, after: None },
        parallel: false,
        residual: None,
        per_layer: None,
        scalar: None,
    }
}

fn mixture(layout: ExpertLayout, shared: Option<Shared>) -> Mlp {
    let router = Router {
        name: "mlp.gate",
        bias: false,
        score: Score::Softmax,
        normalise: true,
        groups: None,
        choice: None,
        scale: 1.0,
        f32: false,
        on_input: false,
        scales: None,
    };
    Mlp::Experts(Box::new(Experts { count: 3, active: 2, width: 5, act: Act::Silu, layout, router, shared }))
}

fn parts(layer: &Layer, pass: Pass) -> Vec<u16> {
    layer.uses(pass).into_iter().map(|p| p.0).collect()
}

#[test]
fn a_llama_layer_lists_its_tensors_in_the_order_of_their_use() {
    let l = layer(grouped().into(), Mlp::Gated(gated()));
    let specs = l.tensors(HIDDEN);
    let listed: Vec<(&str, &[u64], u16)> = specs.iter().map(|s| (s.name.as_str(), &s.shape[..], s.part.0)).collect();
    let want: [(&str, &[u64], u16); 13] = [
        ("input_layernorm.weight", &[8], 0),
        ("self_attn.q_proj.weight", &[24, 8], 0),
        ("self_attn.k_proj.weight", &[12, 8], 0),
        ("self_attn.v_proj.weight", &[12, 8], 0),
        ("self_attn.o_proj.weight", &[8, 24], 0),
        ("self_attn.q_proj.bias", &[24], 0),
        ("self_attn.k_proj.bias", &[12], 0),
        ("self_attn.v_proj.bias", &[12], 0),
        ("self_attn.o_proj.bias", &[8], 0),
        ("post_attention_layernorm.weight", &[8], 0),
        ("mlp.gate_proj.weight", &[16, 8], 1),
        ("mlp.up_proj.weight", &[16, 8], 2),
        ("mlp.down_proj.weight", &[8, 16], 3),
    ];
    assert_eq!(listed, want);
    let targets: Vec<&str> = specs.iter().filter_map(|s| s.lora).collect();
    assert_eq!(targets, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]);
}

#[test]
fn a_recompute_leaves_out_what_no_gradient_depends_on() {
    let mut l = layer(grouped().into(), Mlp::Gated(gated()));
    let passes = |l: &Layer| [Pass::Forward, Pass::Recompute, Pass::Back].map(|p| parts(l, p));
    assert_eq!(passes(&l), [vec![0, 1, 2, 3], vec![0, 1, 2], vec![3, 2, 1, 0]]);
    l.mlp.after = norm("post_feedforward_layernorm");
    assert_eq!(passes(&l)[1], [0, 1, 2, 3], "a norm reads the output of down");
}

/// One layer of each kind that the data knows.
fn kinds() -> Vec<(&'static str, Layer)> {
    let fused = Gated { gate_up: GateUp::Fused(Proj::new("mlp.gate_up_proj")), ..gated() };
    let each = ExpertLayout::Each { at: "mlp.experts", names: ["gate_proj", "up_proj", "down_proj"] };
    let stacked = ExpertLayout::Stacked { at: "mlp.experts", transposed: true, interleaved: true, bias: true };
    let at_rank = Norm::new("self_attn.kv_a_layernorm", 1e-6, NormKind::Rms);
    let latent = Latent {
        heads: 2,
        q_rank: Some(3),
        kv_rank: 4,
        nope: 4,
        rotated: 2,
        value: 4,
        norm: at_rank,
        rope: RopeUse { table: 0, width: 2, pairs: Pairs::Neighbours, f32: false },
        scale: 6f64.powf(-0.5),
        bias: None,
    };
    let delta = Delta { key_heads: 2, value_heads: 4, key: 4, value: 4, taps: 4, eps: 1e-6, fused: false };
    let attention = || Mixer::from(grouped());
    let plain = Plain { width: 16, act: Act::GeluTanh, up: Proj::maybe("mlp.fc1"), down: Proj::maybe("mlp.fc2") };
    let [input, first, second, third] = ["a", "b", "c", "d"].map(|n| Norm::new(n, 1e-6, NormKind::RmsF32));
    let beside = Shared::Beside { dense: gated(), dense_after: first, before: second, after: third };
    let mut per_layer = layer(attention(), mixture(each, Some(beside)));
    (per_layer.per_layer, per_layer.scalar) = (Some(PerLayer { width: 3, after: input }), Some("layer_scalar"));
    let qkv = Qkv::Fused(Proj::new("self_attn.qkv_proj"));
    vec![
        ("gated", layer(attention(), Mlp::Gated(gated()))),
        ("fused", layer(Grouped { qkv, ..grouped() }.into(), Mlp::Gated(fused))),
        ("plain", layer(attention(), Mlp::Plain(plain))),
        ("experts", layer(attention(), mixture(each, Some(Shared::Gated(gated(), "mlp.shared_expert_gate"))))),
        ("stacked", layer(attention(), mixture(stacked, None))),
        ("latent", layer(Mixer::Latent(latent), Mlp::Gated(gated()))),
        ("delta", layer(Mixer::Delta(delta), Mlp::Gated(gated()))),
        ("per layer", per_layer),
    ]
}

#[test]
fn every_kind_of_layer_has_parts_without_a_gap_and_names_and_roles_once() {
    for (kind, layer) in kinds() {
        let specs = layer.tensors(HIDDEN);
        let mut of: Vec<usize> = specs.iter().map(|s| s.part.index()).collect();
        of.sort_unstable();
        of.dedup();
        assert_eq!(of, (0..layer.parts()).collect::<Vec<_>>(), "{kind}");
        let mut names: Vec<&str> = specs.iter().map(|s| s.name.as_str()).collect();
        let mut roles: Vec<Role> = specs.iter().map(|s| s.role).collect();
        names.sort_unstable();
        names.dedup();
        roles.sort_unstable();
        roles.dedup();
        assert_eq!((names.len(), roles.len()), (specs.len(), specs.len()), "{kind}");
        let numbers: Vec<usize> = specs.iter().filter(|s| s.lora.is_some()).map(|s| s.role.number()).collect();
        assert!(
            (0..numbers.len()).all(|i| numbers[i] > 0 && !numbers[..i].contains(&numbers[i])),
            "{kind}: {numbers:?}"
        );
    }
}

#[test]
fn what_the_passes_do_not_compute_is_told_from_the_data() {
    let arch = |layer: Layer| Arch {
        family: "x",
        hidden: HIDDEN,
        vocab: 4,
        embed_scale: None,
        layer_embedding: None,
        layers: vec![layer],
        ropes: vec![Rope { theta: 1e4, scaling: RopeScaling::None }],
        final_norm: Norm::new("norm", 1e-5, NormKind::Rms),
        logits: Logits::default(),
        tied: false,
        max_positions: 16,
        special: SpecialIds::default(),
    };
    let told: Vec<Option<&str>> = kinds().into_iter().map(|(_, l)| arch(l).unsupported()).collect();
    let want = [
        None,
        Some("fused q, k and v"),
        Some("a feed-forward without a gate"),
        Some("a mixture of experts"),
        Some("a mixture of experts"),
        Some("latent attention"),
        Some("a gated delta rule"),
        Some("an embedding for each layer"),
    ];
    assert_eq!(told, want);
    let mut capped = arch(layer(grouped().into(), Mlp::Gated(gated())));
    capped.logits.cap = Some(30.0);
    assert_eq!(capped.unsupported(), Some("capped logits"));
}
