"""Compiles the referee's own C files, once for each cache folder and content. Reports the compiler's version."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kernelwright import inline
from kernelwright.errors import MachineError, MissingToolError

_INSTALL = "install a C and C++ compiler: apt install g++"


def compiler_version() -> str:
    """The first line of g++'s version text.

    Raises:
        MissingToolError: g++ is not installed.
    """
    try:
        return inline.compiler_version()
    except inline.BuildError:
        raise MissingToolError("no C++ compiler: g++ is not on PATH", hint=_INSTALL) from None


def build_library(source: Path, cache_dir: Path, flags: Sequence[str] = ("-O3",)) -> Path:
    """Build the shared object of a C file (or C++ file, by its suffix) in the folder of ``cache_dir`` with its name.

    Raises:
        MissingToolError: no C compiler is installed.
        MachineError: the file does not compile on this machine.
    """
    return _built(source, cache_dir, (*flags, "-shared", "-fPIC"), ".so")


def build_program(source: Path, cache_dir: Path) -> Path:
    """Build the program of a C file, as :func:`build_library` does."""
    return _built(source, cache_dir, ("-O2", "-pthread"), "", ("-ldl",))


def _built(source: Path, cache_dir: Path, flags: Sequence[str], suffix: str, libraries: Sequence[str] = ()) -> Path:
    text = source.read_bytes()
    compiler = ("g++", "c++") if source.suffix == ".cpp" else ("gcc", "c")
    command = [compiler[0], *flags, "-x", compiler[1]]
    path = cache_dir / source.stem / f"{hashlib.sha256(' '.join(command).encode() + text).hexdigest()[:24]}{suffix}"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        subprocess.run([*command, "-o", str(temporary), "-", *libraries], input=text, check=True, capture_output=True)
    except FileNotFoundError:
        raise MissingToolError(f"{compiler[0]} is missing", hint=_INSTALL) from None
    except subprocess.CalledProcessError as error:
        raise MachineError(f"{source.name} could not be built: {error.stderr.decode()[-500:]}") from None
    temporary.replace(path)
    return path


@functools.cache
def compiler_takes(flags: str) -> bool:
    """Whether g++ accepts the flags. The call takes 10 ms."""
    command = ["g++", *flags.split(), "-E", "-x", "c++", "/dev/null"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
