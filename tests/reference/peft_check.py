#!/usr/bin/env python3
"""Load base + adapter with PEFT (float32, CPU) and compare with the logits our tool wrote.

    python peft_check.py BASE_DIR ADAPTER_DIR IDS_JSON LOGITS_SAFETENSORS [TOLERANCE]

IDS_JSON: one list of token ids, a list of equally long lists, or {"input_ids": [[...]], "attention_mask": [[...]]}.
LOGITS_SAFETENSORS: tensor `logits`, [S, V] or [B, S, V]. Positions with attention_mask 0 are not compared.
The largest difference may be TOLERANCE (default 1e-4) times the largest absolute reference logit.
Exit 0: equal and no key missing, unexpected or of another value; 1: not; 2: usage.
"""
import os

os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import json
import sys
import warnings
from pathlib import Path

import torch
import transformers
from peft import PeftConfig, PeftModel
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def fail(text):
    print(f"FAIL: {text}")
    sys.exit(1)


def main():
    if not 5 <= len(sys.argv) <= 6:
        print(__doc__)
        sys.exit(2)
    base_dir, adapter_dir, ids_json, logits_file = sys.argv[1:5]
    tolerance = float(sys.argv[5]) if len(sys.argv) == 6 else 1e-4
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)

    base, info = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v}
    if wrong:
        fail(f"base: {wrong}")

    config = PeftConfig.from_pretrained(adapter_dir)
    file = load_file(Path(adapter_dir) / "adapter_model.safetensors")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model = PeftModel.from_pretrained(base, adapter_dir, config=config, autocast_adapter_dtype=False).float().eval()
        want = get_peft_model_state_dict(model, save_embedding_layers=False)
    for w in seen:
        print(f"warning: {w.message}")
    missing, unexpected = sorted(want.keys() - file.keys()), sorted(file.keys() - want.keys())
    if missing or unexpected:
        fail(f"adapter: missing {missing} unexpected {unexpected}")
    changed = [k for k in want if not torch.equal(want[k], file[k].float())]
    if changed:
        fail(f"adapter: these tensors were not taken as written: {changed}")
    if any("adapter keys" in str(w.message) for w in seen):
        fail("PEFT warned about adapter keys")

    ids = json.loads(Path(ids_json).read_text())
    mask = None
    if isinstance(ids, dict):
        ids, mask = ids["input_ids"], ids.get("attention_mask")
    ids = torch.tensor(ids).reshape(-1, len(ids[0]) if isinstance(ids[0], list) else len(ids))
    mask = torch.ones_like(ids) if mask is None else torch.tensor(mask).reshape(ids.shape)
    with torch.no_grad():
        ref = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    got = load_file(logits_file)["logits"].float()
    if got.dim() == 2:
        got = got[None]
    if got.shape != ref.shape:
        fail(f"logits: shape {tuple(got.shape)}, want {tuple(ref.shape)}")
    real = mask.bool()
    if not torch.isfinite(got[real]).all():
        fail("logits: not finite")
    diff, scale = float((got - ref)[real].abs().max()), float(ref[real].abs().max())
    print(f"keys {len(file)}  max abs diff {diff:.3e}  scaled tolerance {tolerance * scale:.3e}  (largest logit {scale:.4f})")
    if diff > tolerance * scale:
        fail("logits differ")
    print("OK")


if __name__ == "__main__":
    main()
