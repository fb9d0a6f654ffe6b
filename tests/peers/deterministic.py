"""Deterministic runs of our binary at real widths: the same run three times, then streamed beside resident.

usage: deterministic.py --binary BIN --out FILE.json [--layers 8] [--steps 4]
For rows of 4 x 2048 and 1 x 8192 tokens of the 8B shape: three resident runs, one from the RAM tier and one from the disk
tier, each in a process of its own. Exits 1 unless every adapter file and every loss is the same bit for bit.
"""
import argparse, json, os, sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench_common as bc
import first_run

# Name, tier, and whether every block stays on the device.
RUNS = [("resident-1", "ram", True), ("resident-2", "ram", True), ("resident-3", "ram", True), ("ram", "ram", False), ("disk", "disk", False)]


def main():
    p = bc.args_parser()
    p.add_argument("--binary", required=True)
    p.add_argument("--tmp", default="/dev/shm/deterministic")
    p.set_defaults(shape="llama3-8b", layers=8, steps=4)
    a = p.parse_args()
    os.makedirs(os.path.join(a.tmp, "logs"), exist_ok=True)
    ckpt, cfg = bc.make_checkpoint(a)
    table, ok = [], True
    for batch, seq in ((4, 2048), (1, 8192)):
        a.batch, a.seq = batch, seq
        name = f"{batch}x{seq}"
        init = os.path.join(a.tmp, "init-" + name)
        # One step of PEFT leaves the initial adapter, so that every run starts from the same lora_A.
        _, _, rows, _ = first_run.peft_losses(a, ckpt, cfg, init, 1)
        data = os.path.join(a.tmp, name + ".jsonl")
        with open(data, "w") as f:
            for _ in range(a.steps):
                for r in rows:
                    f.write(json.dumps({"input_ids": r}) + "\n")
        runs = {}
        for run, tier, resident in RUNS:
            got = first_run.ours(a, ckpt, init, data, f"{name}-{run}", tier, a.layers if resident else 0, True, a.steps)
            if got:
                runs[run] = dict(adapter_sha256=got["adapter"], losses=got["losses"])
        same = len(runs) == len(RUNS) and all(r == runs["resident-1"] for r in runs.values())
        ok &= same
        print(("ok   " if same else "FAIL ") + f"{name}: {len(runs)} runs, {len({r['adapter_sha256'] for r in runs.values()})} adapter", flush=True)
        table.append(dict(rows=name, same=same, runs=runs))
    json.dump(dict(shape=a.shape, layers=a.layers, steps=a.steps, table=table), open(a.out, "w"), indent=1)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
