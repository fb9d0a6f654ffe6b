"""Held-out loss of an adapter that blockstream-tui trained, computed by PEFT: loads, no missing or extra key, same loss.

usage: peft_heldout.py BASE_DIR ADAPTER_DIR ROWS_JSONL PROGRAM EXPECTED_LOSS
Rows are tokenised and masked by `PROGRAM data inspect` (our tokens, so that only the model is compared).
"""
import json, subprocess, sys
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM

base, adapter, rows, program, expected = sys.argv[1:6]
torch.set_num_threads(2)
model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
model = PeftModel.from_pretrained(model, adapter).eval()
with safe_open(adapter + "/adapter_model.safetensors", "pt") as f:
    saved = set(f.keys())
have = {k.replace(".default", "") for k in model.state_dict() if "lora_" in k}
assert saved == have, f"missing {sorted(have - saved)[:3]}, extra {sorted(saved - have)[:3]}"
total, count = 0.0, 0
for row in range(1, sum(1 for _ in open(rows)) + 1):
    view = json.loads(subprocess.run([program, "data", "inspect", rows, "--model", base, "--row", str(row), "--json"],
                                     check=True, capture_output=True).stdout)
    ids = torch.tensor([[t["id"] for t in view["tokens"]]])
    labels = torch.tensor([t["id"] if t["trained"] else -100 for t in view["tokens"]])[1:]
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, :-1]
    keep = labels != -100
    total += torch.nn.functional.cross_entropy(logits[keep], labels[keep], reduction="sum").item()
    count += int(keep.sum())
loss = total / count
print(f"{len(saved)} tensors loaded; held-out loss by PEFT {loss:.6f} over {count} tokens, ours {expected}")
sys.exit(0 if abs(loss - float(expected)) < 1e-3 else 1)
