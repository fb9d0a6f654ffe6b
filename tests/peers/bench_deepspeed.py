"""DeepSpeed ZeRO-3 with parameter offload on one GPU: frozen weights in pinned host memory, PEFT LoRA, checkpointing.

  python bench_deepspeed.py --peer-path DS --shape llama3-8b --layers 16 --seq 2048 [--ahead 2]
DS is a folder with deepspeed 0.19.8 and what it imports, unpacked (hjson, py-cpuinfo, msgpack, einops, pydantic, ninja):
its wheel is made by `DS_BUILD_OPS=0 pip wheel --no-deps deepspeed==0.19.8`. No operator of its own is compiled: the
optimizer is torch's AdamW on the device, for the adapters alone. RAM tier only: its disk tier needs compiled operators.
"""
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
if "--peer-path" in sys.argv:                 # convenience instead of PYTHONPATH
    i = sys.argv.index("--peer-path"); sys.path.insert(0, sys.argv[i + 1]); del sys.argv[i:i + 2]
for k, v in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511").items():
    os.environ.setdefault(k, v)
import torch
import bench_common as bc

p = bc.args_parser()
p.add_argument("--ahead", type=int, default=2, help="layers fetched ahead of their use")
a = p.parse_args()
assert a.tier == "ram", "ZeRO-3's disk tier needs compiled operators"
ckpt, cfg = bc.make_checkpoint(a)

import deepspeed
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

m = AutoModelForCausalLM.from_pretrained(ckpt, dtype=torch.bfloat16, attn_implementation="sdpa")
m.config.use_cache = False
m = get_peft_model(m, LoraConfig(r=a.rank, lora_alpha=2 * a.rank, target_modules=a.targets.split(","), task_type="CAUSAL_LM"))
layer = sum(q.numel() for n, q in m.named_parameters() if ".layers.0." in n)
m.gradient_checkpointing_enable({"use_reentrant": False}); m.enable_input_require_grads(); m.train()
opt = torch.optim.AdamW([q for q in m.parameters() if q.requires_grad], lr=a.lr)
engine, *_ = deepspeed.initialize(model=m, optimizer=opt, config=dict(
    train_micro_batch_size_per_gpu=a.batch, gradient_accumulation_steps=a.accum, bf16=dict(enabled=True),
    zero_allow_untested_optimizer=True, zero_force_ds_cpu_optimizer=False,
    zero_optimization=dict(
        stage=3, overlap_comm=True, contiguous_gradients=True, offload_param=dict(device="cpu", pin_memory=True),
        stage3_prefetch_bucket_size=a.ahead * layer, stage3_max_live_parameters=(a.ahead + 2) * layer,
        stage3_max_reuse_distance=0, stage3_param_persistence_threshold=100_000)))
ids = bc.batches(a, cfg.vocab_size)


def step(_):
    tot = 0.0
    for k in range(a.accum):
        loss = engine(input_ids=ids[k], labels=ids[k]).loss
        engine.backward(loss); engine.step()
        tot = tot + loss.detach() / a.accum
    return tot


bc.emit(a, "deepspeed", dict(deepspeed=deepspeed.__version__, ahead=a.ahead), bc.run_loop(a, step))
