#!/usr/bin/env python3
"""Golden numerics from HF transformers + PEFT, for the Rust engine to match.

    python make_golden.py OUT_DIR [CASE ...]

Writes one folder per case: a tiny random model as save_pretrained lays it out, a byte-level tokenizer and
golden.safetensors (README.md says what each tensor is), plus OUT_DIR/manifest.json. Float32, CPU, one thread, eager
attention; every draw comes from numpy's PCG64 seeded by the case's weight group, so a second run writes the same bytes.
"""
import os

# Before numpy/torch: one thread, and code paths that do not depend on the vector width of this CPU.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", MKL_CBWR="COMPATIBLE", ATEN_CPU_CAPABILITY="default",
                  HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import json
import shutil
import sys
import zlib
from pathlib import Path

import numpy as np
import peft
import torch
import torch.nn.functional as F
import transformers
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
PREFIX = "base_model.model."
PROMPT, NEW_TOKENS, PAD_TAIL = 10, 12, 6
LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64, rope_theta=10000.0)


def case(cls, layers, inter, tie, rope=None, seq=24, group=None, dtype="float32", tf4=False, extras=False, salt=0, **cfg):
    return dict(cls=cls, layers=layers, inter=inter, tie=tie, rope=rope or dict(rope_type="default", rope_theta=10000.0),
                seq=seq, group=group, dtype=dtype, tf4=tf4, extras=extras, salt=salt, cfg=cfg)


# Layers and widths are what keeps each folder under 700 kB; a salt is one whose greedy
# ids vary and are not close calls.
CASES = {
    "llama_untied": case(LlamaConfig, 2, 80, False, salt=334, extras=True, head_dim=16),
    "llama_tied": case(LlamaConfig, 3, 112, True, salt=167, rope=dict(rope_type="default", rope_theta=500000.0), head_dim=16),
    "llama_rope_llama3": case(LlamaConfig, 3, 80, False, salt=345, rope=LLAMA3_ROPE, head_dim=16),
    "llama_rope_linear": case(LlamaConfig, 3, 112, True, salt=288, rope=dict(rope_type="linear", factor=4.0, rope_theta=10000.0), head_dim=16),
    "mistral_untied": case(MistralConfig, 3, 80, False, salt=205, head_dim=16, sliding_window=None),
    "mistral_window": case(MistralConfig, 2, 128, False, salt=117, seq=40, head_dim=16, sliding_window=8),
    "qwen2_tied": case(Qwen2Config, 3, 112, True, salt=113, rope=dict(rope_type="default", rope_theta=1000000.0)),
    "qwen2_untied": case(Qwen2Config, 3, 80, False, salt=396),
    "qwen3_tied": case(Qwen3Config, 2, 128, True, salt=89, rope=dict(rope_type="default", rope_theta=1000000.0), head_dim=32),
    "qwen3_untied": case(Qwen3Config, 2, 96, False, salt=373, head_dim=32),
    "llama_bf16": case(LlamaConfig, 2, 80, False, salt=334, group="llama_untied", dtype="bfloat16", head_dim=16),
    "llama_tf4_config": case(LlamaConfig, 3, 80, False, salt=345, rope=LLAMA3_ROPE, group="llama_rope_llama3", tf4=True, head_dim=16),
}


def rng(*key):
    return np.random.Generator(np.random.PCG64(zlib.crc32("/".join(key).encode())))


def normal(r, shape, std, mean=0.0):
    return torch.from_numpy((mean + std * r.standard_normal(tuple(shape))).astype(np.float32))


def build(name, c):
    """A model whose weights depend only on the weight group."""
    config = c["cls"](vocab_size=264, hidden_size=64, intermediate_size=c["inter"], num_hidden_layers=c["layers"],
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5,
                      rope_parameters=dict(c["rope"]), tie_word_embeddings=c["tie"], bos_token_id=257, eos_token_id=258,
                      pad_token_id=256, **c["cfg"])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    group = c["group"] or name
    with torch.no_grad():
        for key, p in sorted(model.named_parameters()):  # a tied head is listed once, as the embedding
            r = rng(group, "weight", key)
            if "norm" in key:
                p.copy_(normal(r, p.shape, 0.2, 1.0))
            elif key.endswith(".bias"):
                p.copy_(normal(r, p.shape, 0.2))
            else:
                p.copy_(normal(r, p.shape, 0.08))
    return model


def save_model(model, c, folder):
    if c["dtype"] == "bfloat16":
        model = model.to(torch.bfloat16)
    model.save_pretrained(folder)
    cfg = json.loads((folder / "config.json").read_text())
    assert "rope_parameters" in cfg and "rope_theta" not in cfg and cfg["dtype"] == c["dtype"], cfg  # the transformers-5 form
    if c["tf4"]:  # rewrite it as transformers 4 did
        rope = cfg.pop("rope_parameters")
        cfg["rope_theta"] = rope.pop("rope_theta")
        cfg["rope_scaling"] = rope
        cfg["torch_dtype"] = cfg.pop("dtype")
        cfg["transformers_version"] = "4.51.3"
        (folder / "config.json").write_text(json.dumps(cfg, indent=2, sort_keys=True) + "\n")


def save_tokenizer(folder):
    """Byte-level, token id = byte value, then eight specials: the vocabulary of 264."""
    specials = ["<pad>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>"]
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in plain]
    vocab = {chr(b): b for b in plain} | {chr(256 + n): b for n, b in enumerate(rest)}
    added = [dict(id=256 + i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
             for i, s in enumerate(specials)]
    level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=False)
    bpe = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
               fuse_unk=False, byte_fallback=False, vocab=vocab, merges=[])
    tok = dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=level,
               post_processor=None, decoder=level, model=bpe)
    chatml = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
    (folder / "tokenizer.json").write_text(json.dumps(tok) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(
        bos_token="<bos>", eos_token="<|im_end|>", pad_token="<pad>", chat_template=chatml,
        tokenizer_class="PreTrainedTokenizerFast"), indent=1) + "\n")


def batch(name, c):
    s = c["seq"]
    ids = torch.from_numpy(rng(c["group"] or name, "ids", str(c["salt"])).integers(1, 264, size=(2, s)))
    mask = torch.ones_like(ids)
    ids[1, s - PAD_TAIL:] = 0
    mask[1, s - PAD_TAIL:] = 0
    labels = ids.clone()
    labels[0, :8] = -100
    labels[1, :3] = -100
    labels[1, s - PAD_TAIL:] = -100
    return ids, labels, mask


def ce(logits, labels):
    """Mean over every counted token of both rows: position t predicts labels[t + 1], -100 is not counted."""
    return F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)


def greedy(model, prompt):
    """Argmax with the KV cache, no stop at eos; checked against recomputing without a cache."""
    ids, out, past, margin = prompt, [], None, np.inf
    for _ in range(NEW_TOKENS):
        r = model(input_ids=ids, past_key_values=past, use_cache=True)
        past, top = r.past_key_values, r.logits[0, -1].topk(2)
        margin = min(margin, float(top.values[0] - top.values[1]))
        ids = top.indices[:1].view(1, 1)
        out.append(int(ids))
    full = prompt
    for t in out:
        assert int(model(input_ids=full, use_cache=False).logits[0, -1].argmax()) == t
        full = torch.cat([full, torch.tensor([[t]])], 1)
    assert margin > 0.02, f"greedy choice too close to call: {margin}"
    return torch.tensor(out), margin


def adapter(base, group, case_name, tag="lora", **over):
    cfg = dict(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=TARGETS, bias="none", task_type="CAUSAL_LM") | over
    base.name_or_path = base.config.name_or_path = case_name  # else this machine's path lands in adapter_config.json
    model = get_peft_model(base, LoraConfig(**cfg)).eval()
    state = {}
    for key, t in sorted(get_peft_model_state_dict(model, save_embedding_layers=False).items()):
        state[key] = normal(rng(group, tag, key), t.shape, 0.15 if ".lora_A." in key else 0.1)
    result = set_peft_model_state_dict(model, state)
    assert not result.unexpected_keys
    back = get_peft_model_state_dict(model, save_embedding_layers=False)
    assert back.keys() == state.keys() and all(torch.equal(back[k], state[k]) for k in state)
    return model, {k.removeprefix(PREFIX): v for k, v in state.items()}


def lora_params(model):
    """Short key -> the live parameter."""
    return {n.removeprefix(PREFIX).replace(".default.", "."): p for n, p in model.named_parameters() if p.requires_grad}


def save_adapter(model, folder):
    model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # a model card template, no use here
    path = folder / "adapter_config.json"
    cfg = json.loads(path.read_text())
    cfg["target_modules"] = sorted(cfg["target_modules"])  # PEFT keeps a set: its order changes from run to run
    path.write_text(json.dumps(cfg, indent=2, sort_keys=True))


def trajectory(model, ids, labels, mask):
    params = lora_params(model)
    opt = torch.optim.AdamW(params.values(), lr=1e-2, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    losses, norms = [], []
    for _ in range(5):
        opt.zero_grad()
        loss = ce(model(input_ids=ids, attention_mask=mask, use_cache=False).logits, labels)
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(params.values(), 1.0)))
        losses.append(float(loss.detach()))
        opt.step()
    with torch.no_grad():
        after = float(ce(model(input_ids=ids, attention_mask=mask, use_cache=False).logits, labels))
    out = {"loss": torch.tensor(losses), "grad_norm": torch.tensor(norms), "loss_after": torch.tensor(after)}
    return out | {f"lora.{k}": p.detach().clone() for k, p in params.items()}


def make(name, c, out):
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    group = c["group"] or name
    save_model(build(name, c), c, folder)
    save_tokenizer(folder)

    def load():  # always from the files, so that they are what the numbers belong to
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"], info
        return model.eval()

    ids, labels, mask = batch(name, c)
    args = dict(input_ids=ids, attention_mask=mask, use_cache=False)
    model = load()
    with torch.no_grad():
        logits = model(**args).logits
        base_loss = ce(logits, labels)
        assert torch.allclose(base_loss, model(**args, labels=labels).loss, rtol=1e-6), "HF's own loss differs"
        greedy_ids, margin = greedy(model, ids[:1, :PROMPT])
        model.set_attn_implementation("sdpa")
        real = mask.bool()
        sdpa = float((model(**args).logits - logits)[real].abs().max())
        assert sdpa < 1e-4, sdpa
        model.set_attn_implementation("eager")
    tensors = dict(input_ids=ids, labels=labels, attention_mask=mask, logits=logits, base_loss=base_loss, greedy_ids=greedy_ids)

    peft_model, state = adapter(model, group, name)
    result = peft_model(**args).logits
    loss = ce(result, labels)
    loss.backward()
    grads = {k: p.grad.clone() for k, p in lora_params(peft_model).items()}
    assert grads.keys() == state.keys() and all(g.abs().max() > 0 for g in grads.values())
    tensors |= {"lora_logits": result.detach(), "loss": loss.detach()}
    tensors |= {f"lora.{k}": v for k, v in state.items()} | {f"grad.{k}": v for k, v in grads.items()}
    note = dict(model_type=model.config.model_type, layers=c["layers"], intermediate_size=c["inter"], seq=c["seq"], stored=c["dtype"],
                base_loss=float(base_loss), loss=float(loss.detach()), counted_tokens=int((labels[:, 1:] != -100).sum()),
                max_abs_logit=float(logits.abs().max()), lora_max_change=float((result.detach() - logits).abs().max()),
                grad_norm=float(torch.stack([g.norm() for g in grads.values()]).norm()), greedy_margin=margin, sdpa_max_diff=sdpa)
    if c["extras"]:
        save_adapter(peft_model, folder / "peft_adapter")
        save_file(trajectory(peft_model, ids, labels, mask), folder / "trajectory.safetensors")
        rs, _ = adapter(load(), group, name, "rslora", r=16, lora_alpha=16, use_rslora=True, target_modules=["q_proj", "v_proj"])
        with torch.no_grad():
            tensors["rslora_logits"] = rs(**args).logits
        save_adapter(rs, folder / "peft_rslora")
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "golden.safetensors")
    for f in folder.rglob("*"):
        f.chmod(0o755 if f.is_dir() else 0o644)  # safetensors writes 0600
    note["bytes"] = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert note["bytes"] < 700_000, f"{name}: {note['bytes']} bytes"
    return note


def cross_checks(out):
    """What must hold between cases."""
    g = {n: load_file(out / n / "golden.safetensors") for n in CASES}
    a, b = g["llama_rope_llama3"], g["llama_tf4_config"]
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a), "tf4-style config gives other numbers"
    assert (out / "llama_rope_llama3/model.safetensors").read_bytes() == (out / "llama_tf4_config/model.safetensors").read_bytes()
    f32, bf16 = load_file(out / "llama_untied/model.safetensors"), load_file(out / "llama_bf16/model.safetensors")
    assert f32.keys() == bf16.keys() and all(torch.equal(f32[k].to(torch.bfloat16), bf16[k]) for k in f32)
    # Each feature has to matter: without it the logits differ by far more than a tolerance.
    for name, edit in {"llama_rope_llama3": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
                       "llama_rope_linear": dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
                       "mistral_window": dict(sliding_window=None)}.items():
        config = AutoConfig.from_pretrained(out / name)
        for k, v in edit.items():
            setattr(config, k, v)
        model = AutoModelForCausalLM.from_pretrained(out / name, config=config, dtype=torch.float32, attn_implementation="eager").eval()
        with torch.no_grad():
            other = model(input_ids=g[name]["input_ids"], attention_mask=g[name]["attention_mask"], use_cache=False).logits
        d = float((other - g[name]["logits"])[g[name]["attention_mask"].bool()].abs().max())
        assert d > 0.05, f"{name}: the feature hardly changes the logits ({d})"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    out, names = Path(sys.argv[1]), sys.argv[2:] or list(CASES)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    notes = {}
    for name in names:
        notes[name] = make(name, CASES[name], out)
        print(name, json.dumps(notes[name]))
    if names == list(CASES):
        cross_checks(out)
        versions = dict(torch=torch.__version__.split("+")[0], transformers=transformers.__version__, peft=peft.__version__, numpy=np.__version__)
        (out / "manifest.json").write_text(json.dumps(dict(versions=versions, cases=notes), indent=1) + "\n")


if __name__ == "__main__":
    main()
