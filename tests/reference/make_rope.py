#!/usr/bin/env python3
"""rope_llama3.json: transformers' own llama3-scaled inverse frequencies, float32.

    python make_rope.py [OUT.json]
"""
import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def entry(d, factor):
    rope = dict(rope_type="llama3", factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192, rope_theta=500000.0)
    config = LlamaConfig(hidden_size=4 * d, num_attention_heads=4, head_dim=d, max_position_embeddings=131072, rope_parameters=rope)
    scaled, attention_factor = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    assert attention_factor == 1.0
    plain = 1.0 / 500000.0 ** (torch.arange(0, d, 2, dtype=torch.int64).float() / d)  # the same float32 expression
    return dict(head_dim=d, rope=rope, inv_freq=plain.tolist(), inv_freq_scaled=scaled.tolist(), ratio=(scaled.double() / plain.double()).tolist())


if __name__ == "__main__":
    torch.set_num_threads(1)
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("rope_llama3.json")
    body = dict(transformers=transformers.__version__, cases=[entry(128, 8.0), entry(64, 32.0)])
    out.write_text(json.dumps(body, indent=1) + "\n")
