#!/usr/bin/env bash
# The slow Megatron tests with megatron-core 0.19.2, the newest release that the learner supports; it needs Python 3.12.
#
#   scripts/test_megatron_newest.sh TARGET_DIR [PYTEST_ARGUMENT ...]
#
# Makes a virtual environment in TARGET_DIR; one that is already there is used again. PYTHON=... names another Python 3.12.
# The index or folder known to pip (its own settings, for example PIP_EXTRA_INDEX_URL) decides which build of torch comes.
set -euo pipefail

target=${1:?usage: scripts/test_megatron_newest.sh TARGET_DIR [PYTEST_ARGUMENT ...]}
shift
target=$(mkdir -p "$target" && cd "$target" && pwd)
python=${PYTHON:-python3.12}
cd "$(dirname "$0")/.."

version_of() {
    "$target/bin/python" -c "import importlib.metadata as m; print(m.version('megatron-core'))" 2>/dev/null || true
}
if [ "$(version_of)" != 0.19.2 ]; then
    command -v "$python" >/dev/null || { echo "error: $python not found; set PYTHON to a Python 3.12" >&2; exit 2; }
    minor=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [ "$minor" = 3.12 ] || { echo "error: $python is Python $minor; megatron-core 0.19.2 needs 3.12" >&2; exit 2; }
    [ -x "$target/bin/python" ] || "$python" -m venv "$target"
    "$target/bin/python" -m pip install --quiet -e '.[test]' megatron-core==0.19.2
fi
echo "megatron-core $(version_of), $("$target/bin/python" --version)"
PYTHONWARNINGS=ignore "$target/bin/python" -m pytest -q -m slow tests/distributed "$@"
