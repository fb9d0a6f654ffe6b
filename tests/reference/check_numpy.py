#!/usr/bin/env python3
"""An independent float64 check of the goldens: numpy only, no torch, no transformers.

    python check_numpy.py GOLDEN_DIR [CASE ...]

Recomputes base logits, adapter logits, both losses and greedy ids from the files as they lie, and compares a few
entries of every LoRA gradient with central differences. Prints the largest differences; exits 1 when one is too large.
"""
import json
import math
import sys
from pathlib import Path

import numpy as np


def read(path):
    raw = path.read_bytes()
    n = int.from_bytes(raw[:8], "little")
    out = {}
    for k, h in json.loads(raw[8:8 + n]).items():
        if k == "__metadata__":
            continue
        b = raw[8 + n + h["data_offsets"][0]:8 + n + h["data_offsets"][1]]
        if h["dtype"] == "BF16":
            a = (np.frombuffer(b, "<u2").astype("<u4") << 16).view("<f4")
        else:
            a = np.frombuffer(b, {"F32": "<f4", "I64": "<i8"}[h["dtype"]])
        out[k] = a.reshape(h["shape"]).astype(np.float64 if a.dtype.kind == "f" else np.int64)
    return out


class Model:
    def __init__(self, folder):
        self.c = c = json.loads((folder / "config.json").read_text())
        self.w = read(folder / "model.safetensors")
        self.heads, self.kv = c["num_attention_heads"], c["num_key_value_heads"]
        self.d = c.get("head_dim") or c["hidden_size"] // self.heads
        self.inv_freq = self.rope_frequencies()

    def rope_frequencies(self):
        c = self.c
        p = c.get("rope_parameters") or (c.get("rope_scaling") or {}) | {"rope_theta": c["rope_theta"]}
        f = p["rope_theta"] ** -(np.arange(0, self.d, 2) / self.d)
        kind = p.get("rope_type", "default")
        if kind == "linear":
            return f / p["factor"]
        if kind != "llama3":
            return f
        turns = p["original_max_position_embeddings"] * f / (2 * math.pi)  # full turns within the original context
        lo, hi = p["low_freq_factor"], p["high_freq_factor"]
        keep = np.clip((turns - lo) / (hi - lo), 0, 1)  # 0: divide by the factor, 1: leave alone
        return f * (keep + (1 - keep) / p["factor"])

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.c["rms_norm_eps"]) * self.w[name]

    def linear(self, x, name, lora, scale):
        y = x @ self.w[name + ".weight"].T
        if name + ".bias" in self.w:
            y = y + self.w[name + ".bias"]
        if lora and name + ".lora_A.weight" in lora:
            y = y + scale * (x @ lora[name + ".lora_A.weight"].T) @ lora[name + ".lora_B.weight"].T
        return y

    def forward(self, ids, mask, lora=None, scale=1.0):
        """Position = index. A query sees real tokens at or before it and, with a window W, those fewer than W back."""
        b, s = ids.shape
        pos = np.arange(s)
        visible = (pos[None, :] <= pos[:, None])
        if self.c.get("sliding_window"):
            visible &= pos[None, :] > pos[:, None] - self.c["sliding_window"]
        visible = visible[None, None] & mask[:, None, None, :].astype(bool)
        angle = pos[:, None] * self.inv_freq[None, :]
        cos, sin = np.cos(angle), np.sin(angle)

        def rotate(x):  # halves, not interleaved pairs
            a, z = x[..., :self.d // 2], x[..., self.d // 2:]
            return np.concatenate([a * cos - z * sin, z * cos + a * sin], -1)

        x = self.w["model.embed_tokens.weight"][ids]
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            h = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (self.linear(h, f"{p}self_attn.{n}_proj", lora, scale).reshape(b, s, -1, self.d).transpose(0, 2, 1, 3) for n in "qkv")
            if p + "self_attn.q_norm.weight" in self.w:
                q, k = self.norm(q, p + "self_attn.q_norm.weight"), self.norm(k, p + "self_attn.k_norm.weight")
            q, k = rotate(q), rotate(k)
            k, v = (np.repeat(t, self.heads // self.kv, 1) for t in (k, v))
            score = np.where(visible, q @ k.transpose(0, 1, 3, 2) / math.sqrt(self.d), -np.inf)
            score = np.exp(score - score.max(-1, keepdims=True))
            a = (score / score.sum(-1, keepdims=True) @ v).transpose(0, 2, 1, 3).reshape(b, s, -1)
            x = x + self.linear(a, p + "self_attn.o_proj", lora, scale)
            h = self.norm(x, p + "post_attention_layernorm.weight")
            g = self.linear(h, p + "mlp.gate_proj", lora, scale)
            x = x + self.linear(g / (1 + np.exp(-g)) * self.linear(h, p + "mlp.up_proj", lora, scale), p + "mlp.down_proj", lora, scale)
        head = self.w.get("lm_head.weight", self.w["model.embed_tokens.weight"])
        assert ("lm_head.weight" in self.w) != self.c["tie_word_embeddings"]
        return self.norm(x, "model.norm.weight") @ head.T


def loss_of(logits, labels):
    z, t = logits[:, :-1], labels[:, 1:]
    top = z.max(-1, keepdims=True)
    nll = (top[..., 0] + np.log(np.exp(z - top).sum(-1))) - np.take_along_axis(z, np.maximum(t, 0)[..., None], -1)[..., 0]
    return nll[t != -100].mean()


def check(folder):
    m, g = Model(folder), read(folder / "golden.safetensors")
    ids, labels, mask = g["input_ids"], g["labels"], g["attention_mask"]
    lora = {k[5:]: v for k, v in g.items() if k.startswith("lora.")}
    real = mask.astype(bool)
    base, tuned = m.forward(ids, mask), m.forward(ids, mask, lora, 8 / 4)
    d = {"logits": abs(base - g["logits"])[real].max(), "logits_pad": abs(base - g["logits"])[~real].max(),
         "lora_logits": abs(tuned - g["lora_logits"])[real].max(),
         "base_loss": abs(loss_of(base, labels) - g["base_loss"]), "loss": abs(loss_of(tuned, labels) - g["loss"])}
    if "rslora_logits" in g:
        rs = {k.removeprefix("base_model.model."): v for k, v in read(folder / "peft_rslora/adapter_model.safetensors").items()}
        d["rslora_logits"] = abs(m.forward(ids, mask, rs, 16 / math.sqrt(16)) - g["rslora_logits"])[real].max()
    row = list(ids[0, :10])
    for _ in g["greedy_ids"]:
        row.append(int(m.forward(np.array([row]), np.ones((1, len(row))))[0, -1].argmax()))
    assert row[10:] == list(g["greedy_ids"]), "greedy ids"
    r, eps, worst = np.random.default_rng(0), 1e-4, 0.0
    for k, v in lora.items():
        grad = g["grad." + k]
        for i in (int(abs(grad).argmax()), int(r.integers(v.size))):
            side = []
            for e in (eps, -eps):
                moved = v.copy()
                moved.flat[i] += e
                side.append(loss_of(m.forward(ids, mask, lora | {k: moved}, 2.0), labels))
            worst = max(worst, abs((side[0] - side[1]) / (2 * eps) - grad.flat[i]) / abs(grad).max())
    d["grad (of its max)"] = worst
    if (folder / "trajectory.safetensors").exists():
        t = read(folder / "trajectory.safetensors")
        d["step-0 loss"] = abs(t["loss"][0] - g["loss"])
        d["step-0 grad norm"] = abs(t["grad_norm"][0] - math.sqrt(sum((v * v).sum() for k, v in g.items() if k.startswith("grad."))))
        end = {k[5:]: v for k, v in t.items() if k.startswith("lora.")}
        d["loss after"] = abs(loss_of(m.forward(ids, mask, end, 2.0), labels) - t["loss_after"])
    print(f"{folder.name:18}", "  ".join(f"{k} {v:.1e}" for k, v in d.items()))
    return max(d.values()) < 2e-5


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    names = sys.argv[2:] or sorted(p.name for p in root.iterdir() if p.is_dir())
    sys.exit(0 if all([check(root / n) for n in names]) else 1)
