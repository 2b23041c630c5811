#!/usr/bin/env bash
# Makes .venv with pinned dependencies, once; `make` calls it. PYTHON=... picks the interpreter.
# torch: a CUDA build that the interpreter already has is used as it is; else, without a GPU, the CPU build.
# Where your package index has no CPU build of torch, give one that has: TORCH_INDEX=<url> make setup
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.10}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "needs Python 3.10 or later (found: $(python3 --version 2>&1 || echo none)); set PYTHON=/path/to/python3"
}

has_gpu() { [ -e /dev/nvidia0 ] || [ -e /dev/dxg ] || nvidia-smi -L >/dev/null 2>&1; }

python=$(find_python)
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments; on Debian and Ubuntu install the package python3-venv"
command -v g++ >/dev/null || say "no g++ found: the simulator will not work until there is one (10 or later)"

constraints=constraints.txt
if "$python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)' 2>/dev/null; then
    say "using the CUDA build of torch that $python has"
    "$python" -m venv --system-site-packages .venv
    grep -vE '^(torch|numpy)==' constraints.txt > .venv/constraints.txt
    constraints=.venv/constraints.txt
else
    [ -x .venv/bin/python ] || "$python" -m venv .venv
fi

export PIP_CONSTRAINT="$PWD/$constraints" PIP_DISABLE_PIP_VERSION_CHECK=1
pip=(.venv/bin/python -m pip install --quiet --quiet ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"})
pin=$(grep -E '^torch==' "$constraints" || true)
if [ -n "$pin" ] && ! .venv/bin/python -c 'import torch' 2>/dev/null; then
    if has_gpu; then
        say "a GPU is here: installing $pin with CUDA (large)"
        "${pip[@]}" "$pin"
    else
        say "no GPU is here: installing $pin, CPU build"
        "${pip[@]}" "$pin+cpu" 2>/dev/null || {
            say "this package index has no CPU build; taking its default build (large; TORCH_INDEX=<url> names a better one)"
            "${pip[@]}" "$pin"
        }
    fi
fi

say "installing the other dependencies"
if ! "${pip[@]}" -e '.[dev]'; then
    # A machine without network may have everything already.
    PYTHONPATH=src .venv/bin/python -c 'import torch, numpy, typer, rich, pytest' 2>/dev/null ||
        fail "the dependencies could not be installed (see above)"
    say "no package index within reach; going on with what $python has"
fi
touch .venv/.stamp
say "done: .venv/bin/crucible"
