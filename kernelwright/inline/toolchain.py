"""Builds C++ on this machine, for this machine, with a cache keyed by content."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelwright.inline._declarations import parse_signatures
from kernelwright.inline._library import Library

__all__ = [
    "BASE_FLAGS",
    "BuildError",
    "build_cached",
    "build_locally",
    "compiler_version",
    "cpp",
    "cpp_command",
    "header_command",
]

BASE_FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
# A kernel calls its own functions, not functions of the same name in libc or in the interpreter.
_OWN_FIRST = "-Wl,-Bsymbolic-functions"
LOG_LIMIT = 4096


class BuildError(RuntimeError):
    """A kernel could not be built. ``log`` holds what the compiler said, cut to 4 KB."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message, log)
        self.message = message
        self.log = log[:LOG_LIMIT]

    def __str__(self) -> str:
        return f"{self.message}\n{self.log}" if self.log else self.message


def cpp_command(compiler: str, flags: Sequence[str], source: str, out: str) -> list[str]:
    """The compiler's command line for a C-ABI library (libraries after the source, as the linker wants them)."""
    options = [flag for flag in flags if not flag.startswith("-l")]
    libraries = [flag for flag in flags if flag.startswith("-l")]
    return [compiler, *BASE_FLAGS, _OWN_FIRST, *options, "-o", out, source, *libraries]


def header_command(flags: Sequence[str], source: str, out: str) -> list[str]:
    """The command line that precompiles a header for builds with ``flags``. Macros and libraries are ignored."""
    options = [flag for flag in flags if not flag.startswith(("-D", "-l"))]
    return ["g++", *BASE_FLAGS, *options, "-x", "c++-header", "-o", out, source]


def define_flags(defines: Mapping[str, int | float | str | bool] | None) -> tuple[str, ...]:
    """``defines`` as -D options: True and False become 1 and 0."""
    rendered = []
    for name, value in (defines or {}).items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise BuildError(f"defines: {name!r} is not a C identifier")
        text = str(int(value)) if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)
        rendered.append(f"-D{name}={text}")
    return tuple(rendered)


@functools.lru_cache(maxsize=1)
def processor() -> str:
    """The instruction sets of this machine's processor, which ``-march=native`` depends on."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        wanted = ("model name", "flags", "Features", "CPU part")
        return "\n".join(dict.fromkeys(line for line in lines if line.startswith(wanted)))
    return f"{platform.machine()} {platform.processor()}"


@functools.lru_cache(maxsize=4)
def compiler_version(compiler: str = "g++") -> str:
    """First line of the compiler's ``--version``; raises BuildError if the compiler is missing."""
    try:
        done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"no usable C++ compiler: {compiler} ({error}); install g++ (apt install g++)") from error
    return done.stdout.partition("\n")[0]


def cache_root() -> Path:
    """Where built libraries are kept: ``$XDG_CACHE_HOME/kernelwright/inline``, private to the user."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "kernelwright" / "inline"


def build_cached(
    parts: Mapping[str, Any], source: str, command: Callable[[str, str], list[str]], *, suffix: str = "cpp"
) -> str:
    """Path of the library built from ``source`` (a file with ``suffix``), from the cache if it is there.

    The key is the hash of ``parts``, the source, the compiler and the processor. Each build works in a folder of its
    own and moves its product into place in one step, so neither a race nor a kill leaves half a library behind.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise BuildError("no C++ compiler: g++ is not on PATH; install it (apt install g++)")
    content = {**parts, "source": source, "compiler": compiler_version(compiler), "machine": processor()}
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    folder = cache_root() / key
    product = folder / "kernel.so"
    if product.exists():
        return str(product)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as work:
            Path(work, f"kernel.{suffix}").write_text(source)
            _compile(command(f"kernel.{suffix}", "kernel.so"), work)
            os.replace(os.path.join(work, f"kernel.{suffix}"), folder / f"kernel.{suffix}")
            os.replace(os.path.join(work, "kernel.so"), product)
    except OSError as error:
        raise BuildError(f"cannot write the kernel cache {folder}: {error}; set XDG_CACHE_HOME") from error
    return str(product)


def _compile(command: list[str], folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise BuildError(f"the compiler failed (exit status {done.returncode})", done.stderr or done.stdout)


def build_locally(source: str, flags: tuple[str, ...]) -> str:
    """Compile a C-ABI source on this machine, for this machine; returns the library's path."""
    parts = {"flags": [*BASE_FLAGS, _OWN_FIRST, *flags]}
    return build_cached(parts, source, lambda path, out: cpp_command("g++", flags, path, out))


def cpp(
    source: str,
    *,
    defines: Mapping[str, int | float | str | bool] | None = None,
    flags: Sequence[str] = (),
    build: Callable[[str, tuple[str, ...]], str] = build_locally,
) -> Library:
    """Build C++ source with ``extern "C"`` functions and load it."""
    macros = define_flags(defines)
    options = (*flags, *macros)
    path = build(source, options)
    pairs = (flag[2:].partition("=") for flag in options if flag.startswith("-D"))
    signatures = parse_signatures(source, {name: body if eq else "1" for name, eq, body in pairs})
    return Library(path, signatures, (source, options))
