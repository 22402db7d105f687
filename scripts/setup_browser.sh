#!/bin/sh
# Prepares what `make test-browser` needs beside scripts/setup.sh: Chromium where apt and root (or sudo) allow, else a
# message that says what to install; then the tested versions of what drives it. Does nothing where all is in place.
#   VENV   the virtual environment (.venv)
set -eu

VENV=${VENV:-.venv}
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }
die() { say "setup: $*"; exit 3; }

found() { command -v chromium || command -v chromium-browser || command -v google-chrome; }

if ! found >/dev/null 2>&1; then
    sudo=""
    if [ "$(id -u)" != 0 ] && command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then sudo="sudo -n"; fi
    if command -v apt-get >/dev/null 2>&1 && { [ "$(id -u)" = 0 ] || [ -n "$sudo" ]; }; then
        say "setup: installing chromium"
        # shellcheck disable=SC2086
        { $sudo apt-get update -qq && $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >&2 ||
            die "apt-get could not install chromium; install it by hand and run this again"
    fi
    found >/dev/null 2>&1 || die "please install Chromium (Debian: apt install chromium) and run this again"
fi

if ! "$VENV/bin/python" -c 'import axe_playwright_python, fastapi, playwright, pygments, schemathesis, uvicorn' 2>/dev/null; then
    "$VENV/bin/python" -m pip --quiet --disable-pip-version-check install --constraint constraints.txt \
        --editable '.[web,browser]' >&2
fi
