#!/usr/bin/env bash
# Lays out libtorch 2.11.0 in .libtorch/, once, from the wheels pinned in libtorch-cpu.txt or libtorch-cuda.txt.
#
#   usage: .config/libtorch.sh [DIR]        DIR is .libtorch at the top of the repository unless given
#
# LIBTORCH=<dir>   an unpacked libtorch 2.11.0 of your own: nothing is fetched
# TORCH=cpu|cuda   which build to take; without it CUDA is taken where driver and card suffice
#
# Both builds show the linker the same five files, so the program links to libtorch_cpu and libc10 only. In the CUDA
# build they are links into site/, where the rest lies as pip lays it out and libtorch_cuda.so finds its libraries by
# RPATH; the program loads libtorch_cuda.so at run time from beside the real libtorch_cpu.so.
set -euo pipefail

version=2.11.0
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/wheels.sh"

# Whether this machine can run the CUDA build; on "no" $why says what is missing.
cuda_suffices() {
  local smi query driver capability
  smi=$(PATH=$PATH:/usr/lib/wsl/lib command -v nvidia-smi) || { why="no nvidia-smi here"; return 1; }
  query=$(timeout 60 "$smi" --query-gpu=driver_version,compute_cap --format=csv,noheader 2>/dev/null) ||
    { why="nvidia-smi finds no usable GPU"; return 1; }
  why="nvidia-smi lists no GPU"
  while IFS=', ' read -r driver capability; do
    if ! [[ $driver =~ ^[0-9]+\.[0-9.]+$ && $capability =~ ^[0-9]+\.[0-9]+$ ]]; then
      why="nvidia-smi does not tell driver and compute capability"
    elif (( ${driver%%.*} < 580 )); then
      why="driver $driver is older than 580"
    elif (( ${capability%.*} * 10 + ${capability#*.} < 75 )); then
      why="compute capability $capability is below 7.5"
    else
      return 0
    fi
  done <<<"$query"
  return 1
}

[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || die "blockstream-tui builds on Linux x86-64 only (WSL2 included)"
command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
  die "no C++ compiler: install one (Debian, Ubuntu: apt install g++)"

if [ -n "${LIBTORCH:-}" ]; then
  [ -e "$LIBTORCH/lib/libtorch_cpu.so" ] || die "LIBTORCH is set to $LIBTORCH, which holds no lib/libtorch_cpu.so"
  echo "libtorch: LIBTORCH is set: $LIBTORCH, nothing fetched"
  exit 0
fi

dir=$(realpath -m "${1:-$here/../.libtorch}")
lock "$dir"
have=$(cat "$dir/build-version" 2>/dev/null || true)
why=
case ${TORCH:-auto} in
  cpu) build=cpu why="TORCH=cpu" ;;
  cuda) build=cu130 ;;
  auto) if cuda_suffices; then build=cu130; else build=cpu; fi ;;
  *) die "TORCH is '$TORCH': set it to cpu or cuda, or leave it unset" ;;
esac
# A CUDA build from an earlier day serves the CPU as well.
[ "$have" = "$version+cu130" ] && [ "${TORCH:-auto}" = auto ] && build=cu130
if [ "$have" = "$version+$build" ]; then
  echo "libtorch: ${dir##*/}/ holds $have"
  exit 0
fi

if [ "$build" = cpu ]; then
  echo "libtorch: the CPU build ($why)"
  wheels=$here/libtorch-cpu.txt needs_mb=2000
else
  echo "libtorch: the CUDA build (TORCH=cpu takes the smaller CPU build)"
  wheels=$here/libtorch-cuda.txt needs_mb=7000
fi

begin "$dir" "$needs_mb"
fetch "libtorch $version" "$wheels" "or set LIBTORCH to an unpacked libtorch $version"
echo "unpacking into ${dir##*/}/"
unpack "$build" <<'PY'
import os, re, shutil, sys, zipfile
from glob import glob

build, part = sys.argv[1:]
new, shown = f"{part}/new", ["libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libcudart.so.13", "libcupti.so.13"]

def place(name):
    """Where a wheel's file goes below `new`; None where it is not needed."""
    base = os.path.basename(name)
    if build == "cpu":
        if name.startswith("torch/include/"):
            return name.removeprefix("torch/")
        return f"lib/{base}" if base in shown and re.match(r"torch/lib/|nvidia/cu13/lib/", name) else None
    if re.match(r"torch/include/|nvidia/.+/(lib|include)/", name) and not re.search(r"\.(a|py)$", name):
        return f"site/{name}"
    python_only = r"torch/lib/(libtorch\.so|libtorch_python\.so|libtorch_global_deps\.so|libshm.*)$"
    return f"site/{name}" if re.match(r"torch/lib/[^/]+$", name) and not re.match(python_only, name) else None

os.makedirs(f"{new}/lib")
for wheel in glob(f"{part}/wheels/*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/") and (to := place(name)):
                os.makedirs(os.path.dirname(f"{new}/{to}"), exist_ok=True)
                with archive.open(name) as source, open(f"{new}/{to}", "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    os.remove(wheel)
if build != "cpu":
    os.symlink("site/torch/include", f"{new}/include")
    for name in shown:
        home = "nvidia/cu13" if name.startswith("libcu") else "torch"
        os.symlink(f"../site/{home}/lib/{name}", f"{new}/lib/{name}")
missing = [name for name in shown if not os.path.exists(f"{new}/lib/{name}")]
if missing or not os.path.exists(f"{new}/include/torch/csrc/api/include/torch/torch.h"):
    sys.exit(f"the wheels hold no {', '.join(missing) or 'torch/torch.h'}")
# Cargo's tch asks for -ltorch: a linker script that stands for the CPU library.
with open(f"{new}/lib/libtorch.so", "w") as script:
    script.write("INPUT(libtorch_cpu.so)\n")
PY
echo "$version+$build" >"$part/new/build-version"
finish "$dir"
