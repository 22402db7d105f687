#!/bin/sh
# Prepares a fresh machine: system packages where apt and root (or sudo) allow, else a message that says what to install;
# then a virtual environment with the tested versions. Does nothing where everything is in place.
#   VENV             where the virtual environment goes (.venv)
#   PYTHON           the interpreter that makes it (python3, 3.11 or newer)
#   TORCH_INDEX_URL  where the CPU build of torch comes from, e.g. https://download.pytorch.org/whl/cpu
#   TORCH_VERSION    another torch than the tested one, from 2.10 on; TRITON_VERSION: the Triton that belongs to it
set -eu

VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 3; }

command -v "$PYTHON" >/dev/null 2>&1 || die "no $PYTHON; install Python 3.11 or newer, or set PYTHON"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$PYTHON is older than 3.11; set PYTHON to a newer one"

# --- system packages: a C++ compiler and the sandbox
missing=""
command -v g++ >/dev/null 2>&1 || missing="$missing g++"
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
"$PYTHON" -c 'import venv, ensurepip' >/dev/null 2>&1 || missing="$missing python3-venv"
if [ -n "$missing" ]; then
    sudo=""
    if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo="sudo -n"; fi
    if command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || [ -n "$sudo" ]; }; then
        say "setup: installing$missing"
        # shellcheck disable=SC2086
        { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing; } >&2 ||
            die "apt-get could not install$missing; install them by hand and run this again"
    else
        die "please install$missing (Debian and Ubuntu: apt install$missing) and run this again"
    fi
fi

# --- virtual environment: made again whenever the pinned versions change
stamp="$VENV/.kernelwright-setup"
want="$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum) ${TORCH_INDEX_URL:-} ${TORCH_VERSION:-} ${TRITON_VERSION:-}"
if [ -x "$VENV/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then exit 0; fi

say "setup: installing into $VENV (a few minutes, about 3 GB)"
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --quiet --disable-pip-version-check "$@" >&2; }
torch=$(grep '^torch==' constraints.txt)
constraints=constraints.txt
if [ -n "${TORCH_VERSION:-}" ]; then
    torch="torch==$TORCH_VERSION"
    constraints="$VENV/constraints.txt"
    grep -v '^torch==\|^triton==' constraints.txt > "$constraints"
    if [ -n "${TRITON_VERSION:-}" ]; then echo "triton==$TRITON_VERSION" >> "$constraints"; fi
fi
if [ -n "${TORCH_INDEX_URL:-}" ]; then
    pip install "$torch" --index-url "$TORCH_INDEX_URL"
else
    pip install "$torch"
fi
pip install --constraint "$constraints" --editable '.[dev,data,web,rl]'
printf '%s' "$want" > "$stamp"
