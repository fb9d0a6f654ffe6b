#!/usr/bin/env python3
"""Header-only checkpoints of large public models: what the planner sees, without a weight.

    python make_headers.py [--check] [OUT_DIR]        OUT_DIR: ../data/headers unless given; no package is needed

Writes per model `config.json`, `model.safetensors.index.json` and, per shard, `NAME.safetensors.header.json` with
`{"size": bytes of the weights file, "header": {...}}`. `--check` compares with the files there instead; a difference ends
it with 1. Names, shapes and types are those of the public repositories; which shard holds what, and the order inside a
shard, follow transformers' and safetensors' rules for saving, with the models of many files cut into fewer.

Sources, by hub id and, for the tensors, by the modeling files of transformers 4.57 that save them:
  openai/gpt-oss-120b            config.json; gpt_oss; packed names as in its index (MXFP4: 32 values share a scale)
  Qwen/Qwen3-VL-8B-Instruct      config.json; qwen3_vl
  Qwen/Qwen3-VL-32B-Instruct     config.json; qwen3_vl
  Qwen/Qwen3-VL-235B-A22B-Instruct  config.json; qwen3_vl_moe (a layer's experts in two tensors)
  zai-org/GLM-4.6V               config and weights of zai-org/GLM-4.5V (18106 tensors, 107710933120 parameters), the same
                                 but for the longest position, which is the one of its model card; glm4v_moe
Totals that were published, and are asserted here: parameters of the Qwen3-VL-8B and GLM weights, bytes of gpt-oss-120b.
"""
import json
import sys
from pathlib import Path

SIZES = {"F32": 4, "BF16": 2, "U8": 1}
RANK = {"F32": 0, "BF16": 1, "U8": 2}  # safetensors stores the most strictly aligned type first, then by name


def linear(name, out, into, bias=False):
    yield f"{name}.weight", "BF16", [out, into]
    if bias:
        yield f"{name}.bias", "BF16", [out]


def norm(name, width, bias=False):
    yield f"{name}.weight", "BF16", [width]
    if bias:
        yield f"{name}.bias", "BF16", [width]


def mlp(name, inter, hidden):
    yield from linear(f"{name}.gate_proj", inter, hidden)
    yield from linear(f"{name}.up_proj", inter, hidden)
    yield from linear(f"{name}.down_proj", hidden, inter)


def attention(name, hidden, heads, kv, dim, qkv_bias=False, o_bias=False, qk_norm=False):
    for part, rows in [("q", heads), ("k", kv), ("v", kv)]:
        yield from linear(f"{name}.{part}_proj", rows * dim, hidden, qkv_bias)
    yield from linear(f"{name}.o_proj", hidden, heads * dim, o_bias)
    if qk_norm:
        yield from norm(f"{name}.q_norm", dim)
        yield from norm(f"{name}.k_norm", dim)


def block_norms(layer, hidden):
    yield from norm(f"{layer}.input_layernorm", hidden)
    yield from norm(f"{layer}.post_attention_layernorm", hidden)


def text_stack(prefix, c, block):
    yield f"{prefix}embed_tokens.weight", "BF16", [c["vocab_size"], c["hidden_size"]]
    for i in range(c["num_hidden_layers"]):
        yield from block(i, f"{prefix}layers.{i}")
    yield from norm(f"{prefix}norm", c["hidden_size"])
    yield "lm_head.weight", "BF16", [c["vocab_size"], c["hidden_size"]]


def gpt_oss(config):
    c = config
    hidden, experts, inter = c["hidden_size"], c["num_local_experts"], c["intermediate_size"]

    def block(_, layer):
        yield from attention(f"{layer}.self_attn", hidden, c["num_attention_heads"], c["num_key_value_heads"],
                             c["head_dim"], qkv_bias=True, o_bias=True)
        yield f"{layer}.self_attn.sinks", "BF16", [c["num_attention_heads"]]
        yield from linear(f"{layer}.mlp.router", experts, hidden, bias=True)
        for name, rows, columns in [("gate_up_proj", 2 * inter, hidden), ("down_proj", hidden, inter)]:
            # A row is cut into groups of 32 values: 16 bytes of blocks and one byte of scale each.
            yield f"{layer}.mlp.experts.{name}_blocks", "U8", [experts, rows, columns // 32, 16]
            yield f"{layer}.mlp.experts.{name}_scales", "U8", [experts, rows, columns // 32]
            yield f"{layer}.mlp.experts.{name}_bias", "BF16", [experts, rows]
        yield from block_norms(layer, hidden)

    yield from text_stack("model.", c, block)


def qwen3_vl(config):
    c, v = config["text_config"], config["vision_config"]
    hidden = c["hidden_size"]

    def block(_, layer):
        yield from attention(f"{layer}.self_attn", hidden, c["num_attention_heads"], c["num_key_value_heads"],
                             c["head_dim"], qk_norm=True)
        if experts := c.get("num_experts"):
            inter = c["moe_intermediate_size"]
            yield from linear(f"{layer}.mlp.gate", experts, hidden)
            yield f"{layer}.mlp.experts.gate_up_proj", "BF16", [experts, hidden, 2 * inter]
            yield f"{layer}.mlp.experts.down_proj", "BF16", [experts, inter, hidden]
        else:
            yield from mlp(f"{layer}.mlp", c["intermediate_size"], hidden)
        yield from block_norms(layer, hidden)

    yield from qwen3_tower("model.visual", v)
    yield from text_stack("model.language_model.", c, block)


def qwen3_tower(tower, v):
    width, merged = v["hidden_size"], v["hidden_size"] * v["spatial_merge_size"] ** 2
    patch = [v["in_channels"], v["temporal_patch_size"], v["patch_size"], v["patch_size"]]
    yield f"{tower}.patch_embed.proj.weight", "BF16", [width, *patch]
    yield f"{tower}.patch_embed.proj.bias", "BF16", [width]
    yield f"{tower}.pos_embed.weight", "BF16", [v["num_position_embeddings"], width]
    for i in range(v["depth"]):
        block = f"{tower}.blocks.{i}"
        yield from norm(f"{block}.norm1", width, bias=True)
        yield from norm(f"{block}.norm2", width, bias=True)
        yield from linear(f"{block}.attn.qkv", 3 * width, width, bias=True)
        yield from linear(f"{block}.attn.proj", width, width, bias=True)
        yield from linear(f"{block}.mlp.linear_fc1", v["intermediate_size"], width, bias=True)
        yield from linear(f"{block}.mlp.linear_fc2", width, v["intermediate_size"], bias=True)
    mergers = [(f"{tower}.merger", width)]
    mergers += [(f"{tower}.deepstack_merger_list.{i}", merged) for i in range(len(v["deepstack_visual_indexes"]))]
    for merger, normed in mergers:
        yield from norm(f"{merger}.norm", normed, bias=True)
        yield from linear(f"{merger}.linear_fc1", merged, merged, bias=True)
        yield from linear(f"{merger}.linear_fc2", v["out_hidden_size"], merged, bias=True)


def glm4v_moe(config):
    c, v = config["text_config"], config["vision_config"]
    hidden, inter = c["hidden_size"], c["moe_intermediate_size"]

    def block(i, layer):
        yield from attention(f"{layer}.self_attn", hidden, c["num_attention_heads"], c["num_key_value_heads"],
                             c["head_dim"], qkv_bias=True)
        if i < c["first_k_dense_replace"]:
            yield from mlp(f"{layer}.mlp", c["intermediate_size"], hidden)
        else:
            for e in range(c["n_routed_experts"]):
                yield from mlp(f"{layer}.mlp.experts.{e}", inter, hidden)
            yield from linear(f"{layer}.mlp.gate", c["n_routed_experts"], hidden)
            yield f"{layer}.mlp.gate.e_score_correction_bias", "F32", [c["n_routed_experts"]]
            yield from mlp(f"{layer}.mlp.shared_experts", inter * c["n_shared_experts"], hidden)
        yield from block_norms(layer, hidden)

    yield from text_stack("model.language_model.", c, block)
    yield from glm_tower("model.visual", v)


def glm_tower(tower, v):
    width, out, inter = v["hidden_size"], v["out_hidden_size"], v["intermediate_size"]
    yield f"{tower}.embeddings.position_embedding.weight", "BF16", [(v["image_size"] // v["patch_size"]) ** 2, width]
    yield f"{tower}.patch_embed.proj.weight", "BF16", [width, v["in_channels"], v["temporal_patch_size"],
                                                      v["patch_size"], v["patch_size"]]
    yield f"{tower}.patch_embed.proj.bias", "BF16", [width]
    for i in range(v["depth"]):
        block = f"{tower}.blocks.{i}"
        yield from norm(f"{block}.norm1", width)
        yield from norm(f"{block}.norm2", width)
        yield from linear(f"{block}.attn.qkv", 3 * width, width)
        yield from linear(f"{block}.attn.proj", width, width)
        yield from mlp(f"{block}.mlp", out, width)
    yield from linear(f"{tower}.merger.proj", out, out)
    yield from norm(f"{tower}.merger.post_projection_norm", out, bias=True)
    yield from mlp(f"{tower}.merger", inter, out)
    yield from norm(f"{tower}.post_conv_layernorm", width)
    yield f"{tower}.downsample.weight", "BF16", [out, width, v["spatial_merge_size"], v["spatial_merge_size"]]
    yield f"{tower}.downsample.bias", "BF16", [out]
    yield from norm(f"{tower}.post_layernorm", width)


GPT_OSS_120B = dict(
    architectures=["GptOssForCausalLM"], attention_bias=True, attention_dropout=0.0, eos_token_id=200002,
    experts_per_token=4, head_dim=64, hidden_act="silu", hidden_size=2880, initial_context_length=4096,
    initializer_range=0.02, intermediate_size=2880, layer_types=["sliding_attention", "full_attention"] * 18,
    max_position_embeddings=131072, model_type="gpt_oss", num_attention_heads=64, num_experts_per_tok=4,
    num_hidden_layers=36, num_key_value_heads=8, num_local_experts=128, output_router_logits=False, pad_token_id=199999,
    quantization_config=dict(modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                     "model.embed_tokens", "lm_head"], quant_method="mxfp4"),
    rms_norm_eps=1e-05,
    rope_scaling=dict(beta_fast=32.0, beta_slow=1.0, factor=32.0, original_max_position_embeddings=4096,
                      rope_type="yarn", truncate=False),
    rope_theta=150000, router_aux_loss_coef=0.9, sliding_window=128, swiglu_limit=7.0, tie_word_embeddings=False,
    transformers_version="4.55.0.dev0", use_cache=True, vocab_size=201088)


def qwen3_vl_config(kind, name, hidden, inter, layers, heads, kv, **experts):
    text = dict(
        attention_bias=False, attention_dropout=0.0, bos_token_id=151643, dtype="bfloat16", eos_token_id=151645,
        head_dim=128, hidden_act="silu", hidden_size=hidden, initializer_range=0.02, intermediate_size=inter,
        max_position_embeddings=262144, model_type=f"{kind}_text", num_attention_heads=heads, num_hidden_layers=layers,
        num_key_value_heads=kv, rms_norm_eps=1e-06,
        rope_scaling=dict(mrope_interleaved=True, mrope_section=[24, 20, 20], rope_type="default"),
        rope_theta=5000000, use_cache=True, vocab_size=151936, **experts)
    vision = dict(
        deepstack_visual_indexes=[8, 16, 24], depth=27, hidden_act="gelu_pytorch_tanh", hidden_size=1152, in_channels=3,
        initializer_range=0.02, intermediate_size=4304, model_type=kind, num_heads=16, num_position_embeddings=2304,
        out_hidden_size=hidden, patch_size=16, spatial_merge_size=2, temporal_patch_size=2)
    return dict(
        architectures=[f"{name}ForConditionalGeneration"], image_token_id=151655, model_type=kind, text_config=text,
        tie_word_embeddings=False, transformers_version="4.57.0.dev0", video_token_id=151656, vision_config=vision,
        vision_end_token_id=151653, vision_start_token_id=151652)


GLM_46V = dict(
    architectures=["Glm4vMoeForConditionalGeneration"], image_end_token_id=151340, image_start_token_id=151339,
    image_token_id=151363, model_type="glm4v_moe",
    text_config=dict(
        attention_bias=True, attention_dropout=0.0, dtype="bfloat16", eos_token_id=[151329, 151336, 151338],
        first_k_dense_replace=1, head_dim=128, hidden_act="silu", hidden_size=4096, initializer_range=0.02,
        intermediate_size=10944, max_position_embeddings=131072, model_type="glm4v_moe_text",
        moe_intermediate_size=1408, n_group=1, n_routed_experts=128, n_shared_experts=1, norm_topk_prob=True,
        num_attention_heads=96, num_experts_per_tok=8, num_hidden_layers=46, num_key_value_heads=8,
        pad_token_id=151329, partial_rotary_factor=0.5, rms_norm_eps=1e-05,
        rope_scaling=dict(mrope_section=[8, 12, 12], rope_type="default"), rope_theta=10000,
        routed_scaling_factor=1.0, topk_group=1, use_cache=True, use_qk_norm=False, vocab_size=151552),
    tie_word_embeddings=False, transformers_version="4.57.1", video_end_token_id=151342, video_start_token_id=151341,
    video_token_id=151364,
    vision_config=dict(
        attention_bias=False, attention_dropout=0.0, depth=24, hidden_act="silu", hidden_size=1536, image_size=336,
        in_channels=3, initializer_range=0.02, intermediate_size=10944, model_type="glm4v_moe", num_heads=12,
        out_hidden_size=4096, patch_size=14, rms_norm_eps=1e-05, spatial_merge_size=2, temporal_patch_size=2))

# Per model: config, tensors, names of the shards, and published totals: tensors, parameters, bytes (None: not checked).
MODELS = {
    "gpt-oss-120b": (GPT_OSS_120B, gpt_oss, [f"model-{i:05}-of-00014" for i in range(15)], (None, None, 65248815744)),
    "qwen3-vl-8b": (qwen3_vl_config("qwen3_vl", "Qwen3VL", 4096, 12288, 36, 32, 8), qwen3_vl, 4,
                    (None, 8767123696, None)),
    "qwen3-vl-32b": (qwen3_vl_config("qwen3_vl", "Qwen3VL", 5120, 25600, 64, 64, 8), qwen3_vl, 14, (None, None, None)),
    "qwen3-vl-235b-a22b": (
        qwen3_vl_config("qwen3_vl_moe", "Qwen3VLMoe", 4096, 12288, 94, 64, 4, decoder_sparse_step=1, mlp_only_layers=[],
                        moe_intermediate_size=1536, norm_topk_prob=True, num_experts=128, num_experts_per_tok=8),
        qwen3_vl, 24, (None, None, None)),
    "glm-4.6v": (GLM_46V, glm4v_moe, 8, (18106, 107710933120, None)),
}


def elements(shape):
    n = 1
    for d in shape:
        n *= d
    return n


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def files(name):
    """The files of a model, by name."""
    config, tensors, shards, published = MODELS[name]
    if isinstance(shards, int):
        shards = [f"model-{i:05}-of-{shards:05}" for i in range(1, shards + 1)]
    tensors = list(tensors(config))
    sizes = {n: elements(shape) * SIZES[dtype] for n, dtype, shape in tensors}
    total = sum(sizes.values())
    ours = (len(tensors), sum(elements(shape) for _, _, shape in tensors), total)
    for what, want, got in zip(["tensors", "parameters", "bytes"], published, ours):
        if want is not None and want != got:
            sys.exit(f"{name}: {got} {what}, but {want} were published")
    if len(sizes) != len(tensors):
        sys.exit(f"{name}: a name is there twice")

    held, at = {shard: [] for shard in shards}, 0
    for tensor in tensors:
        held[shards[min(at * len(shards) // total, len(shards) - 1)]].append(tensor)
        at += sizes[tensor[0]]
    out = {"config.json": json.dumps(config, indent=2) + "\n"}
    place = {}
    for shard, inside in held.items():
        header, begin = {"__metadata__": {"format": "pt"}}, 0
        for tensor, dtype, shape in sorted(inside, key=lambda t: (RANK[t[1]], t[0])):
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, begin + sizes[tensor]]}
            begin += sizes[tensor]
            place[tensor] = f"{shard}.safetensors"
        length = -(-len(compact(header)) // 8) * 8  # padded so that the data is aligned
        out[f"{shard}.safetensors.header.json"] = compact({"size": 8 + length + begin, "header": header}) + "\n"
    weight_map = {tensor: place[tensor] for tensor in sorted(place)}
    out["model.safetensors.index.json"] = compact({"metadata": {"total_size": total}, "weight_map": weight_map}) + "\n"
    return out


def main():
    args = sys.argv[1:]
    check = "--check" in args
    places = [a for a in args if a != "--check"]
    out = Path(places[0]) if places else Path(__file__).parent.parent / "data" / "headers"
    wrong = []
    for name in MODELS:
        made = files(name)
        folder = out / name
        if check:
            there = {p.name for p in folder.iterdir()} if folder.is_dir() else set()
            wrong += [f"{name}/{f}" for f in sorted(there ^ set(made))]
            wrong += [f"{name}/{f}" for f in sorted(there & set(made)) if (folder / f).read_text() != made[f]]
        else:
            folder.mkdir(parents=True, exist_ok=True)
            for file, text in made.items():
                (folder / file).write_text(text)
    if wrong:
        sys.exit("differ: " + ", ".join(wrong))


if __name__ == "__main__":
    main()
