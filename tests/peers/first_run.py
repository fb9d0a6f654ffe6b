"""PEFT resident beside our binary on one GPU: the same checkpoint, initial lora_A, tokens and learning rate.

usage: first_run.py --binary BIN --out DIR [--soup DIR] [--blockstreamer DIR] [--layers 16] [--seq 2048]
Writes DIR/summary.json and copies of our runs' reports. Exits 1 if a gate fails:
  streamed = resident bit for bit (deterministic kernels), |loss - PEFT| <= 0.003 at each step, total fall >= 95 % of
  PEFT's, layer 0's lora_B moved, live VRAM <= plan.
"""
import argparse, glob, hashlib, json, os, shutil, statistics, subprocess, sys, time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_common as bc


def sh(cmd, log):
    t = time.time()
    with open(log, "w") as f:
        rc = subprocess.run(cmd, stdout=f, stderr=subprocess.STDOUT).returncode
    print(f"# rc {rc} in {time.time() - t:.1f} s: {' '.join(map(str, cmd))[:150]}", flush=True)
    if rc:
        print(open(log).read()[-3000:], flush=True)
    return rc


def peft_losses(a, ckpt, cfg, init, steps):
    """Trains PEFT resident from a saved initial adapter; returns losses and step times."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    torch.manual_seed(0)
    m = AutoModelForCausalLM.from_pretrained(ckpt, dtype=torch.bfloat16).to("cuda")
    m.config.use_cache = False
    m = get_peft_model(m, LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, task_type="CAUSAL_LM",
                                     target_modules=["q_proj", "k_proj", "v_proj", "o_proj"]))
    m.save_pretrained(init)
    m.gradient_checkpointing_enable({"use_reentrant": False}); m.enable_input_require_grads(); m.train()
    opt = torch.optim.AdamW([q for q in m.parameters() if q.requires_grad], lr=a.lr, weight_decay=0.0)
    ids = bc.batches(a, cfg.vocab_size)
    losses, times = [], []
    for _ in range(steps):
        torch.cuda.synchronize(); t = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            loss = m(input_ids=ids[0], labels=ids[0]).loss
        loss.backward(); opt.step(); opt.zero_grad(set_to_none=True)
        torch.cuda.synchronize(); times.append(time.perf_counter() - t); losses.append(float(loss))
    rows = ids[0].cpu().tolist()
    peak = torch.cuda.max_memory_allocated()
    del m, opt; torch.cuda.empty_cache()
    return losses, times, rows, peak


CONFIG = """
results = "{results}"
[model]
path = "{ckpt}"
[data]
files = ["{data}"]
format = "tokens"
max_length = {seq}
[lora]
r = 16
alpha = 32.0
targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
init_from = "{init}"
[train]
max_steps = {steps}
per_device_train_batch_size = {batch}
learning_rate = {lr}
lr_scheduler_type = "constant"
warmup_steps = 0
max_grad_norm = 0.0
deterministic = {det}
device = "cuda"
[stream]
tier = "{tier}"
prefetch_ahead = {ahead}
resident_blocks = {resident}
"""


def ours(a, ckpt, init, data, name, tier, resident, det, steps, ahead=2):
    results = os.path.join(a.tmp, "runs", name)
    os.makedirs(results, exist_ok=True)
    cfg = os.path.join(a.tmp, name + ".toml")
    with open(cfg, "w") as f:
        f.write(CONFIG.format(results=results, ckpt=ckpt, data=data, init=init, seq=a.seq, batch=a.batch, steps=steps, lr=a.lr,
                              det=str(det).lower(), tier=tier, resident=resident, ahead=ahead))
    rc = sh([a.binary, "train", "--config", cfg], os.path.join(a.tmp, "logs", name + ".log"))
    runs = sorted(glob.glob(results + "/*/report.json"))
    if rc or not runs:
        return None
    run = os.path.dirname(runs[-1])
    report = json.load(open(runs[-1]))
    steps_ = [json.loads(l) for l in open(run + "/metrics.jsonl")]
    losses = [s["loss"] for s in steps_ if "loss" in s]
    adapter = open(run + "/adapter/adapter_model.safetensors", "rb").read()
    return dict(name=name, run=run, report=report, losses=losses, adapter=hashlib.sha256(adapter).hexdigest())


def moved_b(run):
    from safetensors import safe_open
    with safe_open(run + "/adapter/adapter_model.safetensors", "pt") as f:
        k = [k for k in f.keys() if ".layers.0." in k and "lora_B" in k]
        return {x: float(f.get_tensor(x).abs().max()) for x in k}


def peer(cmd, log):
    if sh(cmd, log):
        return None
    line = [l for l in open(log) if l.startswith("RESULT ")]
    return json.loads(line[-1][7:]) if line else None


def main():
    p = bc.args_parser()
    p.add_argument("--binary", required=True); p.add_argument("--soup"); p.add_argument("--blockstreamer")
    p.add_argument("--tmp", default="/dev/shm/first")
    p.set_defaults(shape="llama3-8b", layers=16, seq=2048)
    a = p.parse_args()
    os.makedirs(a.out, exist_ok=True); os.makedirs(a.tmp, exist_ok=True)
    logs = os.path.join(a.tmp, "logs"); os.makedirs(logs, exist_ok=True)
    t = time.time(); ckpt, cfg = bc.make_checkpoint(a); print(f"# checkpoint in {time.time() - t:.0f} s", flush=True)
    init, steps = os.path.join(a.tmp, "init"), 10
    base, base_t, rows, base_peak = peft_losses(a, ckpt, cfg, init, steps)
    data = os.path.join(a.tmp, "rows.jsonl")
    with open(data, "w") as f:
        for r in rows:
            f.write(json.dumps({"input_ids": r}) + "\n")
    runs = {}
    for name, tier, resident, det in [("resident-det", "ram", a.layers, True), ("ram-det", "ram", 0, True),
                                      ("disk-det", "disk", 0, True), ("resident", "ram", a.layers, False),
                                      ("ram", "ram", 0, False), ("disk", "disk", 0, False)]:
        runs[name] = ours(a, ckpt, init, data, name, tier, resident, det, steps if det or tier == "ram" else 5)
    failures = []
    def gate(ok, what):
        print(("ok   " if ok else "FAIL ") + what, flush=True)
        if not ok:
            failures.append(what)
    ok = {k: v for k, v in runs.items() if v}
    gate(len(ok) == len(runs), f"every run ended well: {sorted(ok)}")
    for name in ("ram-det", "disk-det"):
        if name in ok and "resident-det" in ok:
            gate(ok[name]["adapter"] == ok["resident-det"]["adapter"] and ok[name]["losses"] == ok["resident-det"]["losses"],
                 f"{name} = resident bit for bit")
    for name in ("ram-det", "ram"):
        if name in ok:
            d = [abs(x - y) for x, y in zip(ok[name]["losses"], base)]
            gate(len(d) == steps and max(d) <= 0.003, f"{name}: largest loss difference to PEFT {max(d):.5f}")
            fall, want = ok[name]["losses"][0] - ok[name]["losses"][-1], base[0] - base[-1]
            gate(fall >= 0.95 * want, f"{name}: total fall {fall:.4f} of PEFT's {want:.4f}")
            b = moved_b(ok[name]["run"])
            gate(len(b) == 4 and min(b.values()) > 0, f"{name}: layer 0 lora_B moved {b}")
    for name in ("resident", "ram", "disk"):
        if name in ok:
            v = ok[name]["report"]["vram"]
            gate(v["live"] <= v["planned"], f"{name}: live VRAM {v['live'] / 1e9:.3f} GB, planned {v['planned'] / 1e9:.3f} GB")
            gate(ok[name]["report"]["residency"]["peak"] <= ok[name]["report"]["residency"]["planned"], f"{name}: residency {ok[name]['report']['residency']}")
            gate(ok[name]["report"]["bytes"]["model_drive_written"] == 0, f"{name}: nothing written")
    peers = {}
    here = os.path.dirname(os.path.abspath(__file__))
    common = ["--shape", a.shape, "--layers", str(a.layers), "--seq", str(a.seq), "--steps", "6", "--warmup", "2", "--work", a.work]
    if a.soup:
        peers["soup_ram"] = peer([sys.executable, here + "/bench_soup.py", "--peer-path", a.soup, *common, "--tier", "ram"], logs + "/soup.log")
    if a.blockstreamer:
        peers["block_streamer_ram"] = peer([sys.executable, here + "/bench_blockstreamer.py", "--peer-path", a.blockstreamer, *common, "--tier", "ram"], logs + "/bs.log")
    summary = dict(
        shape=a.shape, layers=a.layers, tokens_per_step=a.seq, steps=steps,
        peft=dict(losses=base, step_s_median=statistics.median(base_t[2:]), vram_live=base_peak),
        ours={k: dict(losses=v["losses"], seconds_per_step=v["report"]["seconds_per_step"], vram=v["report"]["vram"],
                      residency=v["report"]["residency"], bytes=v["report"]["bytes"], forecast=v["report"]["forecast"],
                      stats={x: y for x, y in v["report"]["stats"].items() if x != "resident_history"})
              for k, v in ok.items()},
        peers=peers, failures=failures)
    json.dump(summary, open(os.path.join(a.out, "summary.json"), "w"), indent=1)
    for k in ("ram", "disk"):
        if k in ok:
            for f in ("report.json", "report.md"):
                shutil.copy(os.path.join(ok[k]["run"], f), os.path.join(a.out, f"{k}-{f}"))
    print(json.dumps({k: v["seconds_per_step"] for k, v in summary["ours"].items()}), flush=True)
    print("PEFT", summary["peft"]["step_s_median"], "peers", {k: v and v["step_s_median"] for k, v in peers.items()}, flush=True)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
