#!/usr/bin/env bash
# Makes a CUDA 13.0 toolkit out of Python wheels (about 150 MB; no GPU, no driver, no root) and prints the
# environment to build with:
#
#   eval "$(scripts/cuda/toolkit.sh [FOLDER])"        # by default target/cuda-toolkit
#
# `scripts/cuda/toolkit.sh --nvrtc [FOLDER]` installs NVRTC alone (90 MB) and prints the folder of its library.
#
# Instead of the CUDA libraries it links archives of trampolines (gen_lazy.py): the executable
# starts without any of them, opens each at its first call, and where one is missing the call gives
# an error code. Of candle's kernels those for quantised GGUF files are left out: `QMatMul` on CUDA
# does not work in such a build. x86-64 only. nvcc stays at 13.0: later ones write code that the
# drivers of that series refuse.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
only=
[ "${1:-}" != --nvrtc ] || { only=nvrtc; shift; }
folder=${1:-$here/../../target/cuda-toolkit}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

[ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv" >&2
# --no-deps: what is named is all that is needed.
install() {
  "$folder/venv/bin/python" -m pip install -q --no-deps --disable-pip-version-check "$@" >&2
}
install nvidia-cuda-nvrtc==13.0.88
root=$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/nvidia/cu13
[ -z "$only" ] || { echo "$root/lib"; exit; }

cudarc=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/cudarc-0.19.10 2>/dev/null | head -1 || true)
[ -n "$cudarc" ] || { echo "cudarc 0.19.10 is not here yet: run 'cargo fetch' first" >&2; exit 1; }

install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
  nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96
ln -sfn lib "$root/lib64"

stubs=$root/lib/stubs
rm -rf "$stubs"
python3 "$here/gen_lazy.py" "$cudarc" "$stubs" >&2
rm -f "$stubs"/*.[cso]
cp "$root/lib/libcudart_static.a" "$stubs/libcudart.a"

# A wrapper round nvcc: PTX is made for real, the GGUF objects are empty.
wrap=$root/wrap/bin
mkdir -p "$wrap"
{
  echo '#!/bin/sh'
  echo 'for a in "$@"; do case $a in --ptx|--version|--list-gpu-code) exec '"'$root/bin/nvcc'"' "$@";; esac; done'
  sed 1d "$here/stand-in/bin/nvcc"
} > "$wrap/nvcc"
chmod +x "$wrap/nvcc"
cat <<X
export CUDA_HOME=$root
export CUDA_PATH=$root
export PATH=$wrap:$root/bin:\$PATH
export NVCC=$wrap/nvcc
export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-90}
export CUDARC_CUDA_VERSION=13000
X
