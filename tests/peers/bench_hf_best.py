"""HF PEFT resident with the settings that its users pick for speed: no checkpointing, and Liger's fused kernels.

  python bench_hf_best.py --peer-path LIGER --liger --shape llama3-8b --layers 32 --seq 2048 [--ckpt-gc]
--liger needs liger-kernel 0.8.5 (pure Python and Triton): `pip download --no-deps liger-kernel==0.8.5`, unpacked.
"""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
if "--peer-path" in sys.argv:                 # convenience instead of PYTHONPATH
    i = sys.argv.index("--peer-path"); sys.path.insert(0, sys.argv[i + 1]); del sys.argv[i:i + 2]
import torch
import bench_common as bc

p = bc.args_parser()
p.add_argument("--ckpt-gc", action="store_true")
p.add_argument("--liger", action="store_true")
a = p.parse_args()
ckpt, cfg = bc.make_checkpoint(a)

from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

m = AutoModelForCausalLM.from_pretrained(ckpt, dtype=torch.bfloat16, attn_implementation="sdpa").to(a.device)
m.config.use_cache = False
if a.liger:
    from liger_kernel.transformers import _apply_liger_kernel_to_instance
    _apply_liger_kernel_to_instance(model=m)
m = get_peft_model(m, LoraConfig(r=a.rank, lora_alpha=2 * a.rank, target_modules=a.targets.split(","), task_type="CAUSAL_LM"))
if a.ckpt_gc:
    m.gradient_checkpointing_enable({"use_reentrant": False}); m.enable_input_require_grads()
m.train()
opt = torch.optim.AdamW([q for q in m.parameters() if q.requires_grad], lr=a.lr, fused=True)
ids = bc.batches(a, cfg.vocab_size)
bc.emit(a, "hf-best", dict(ckpt_gc=a.ckpt_gc, liger=a.liger), bc.run_loop(a, lambda _: bc.peft_step(a, m, opt, ids)))
