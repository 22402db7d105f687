"""A stand-in for CUDA's driver on host memory: what needs a GPU's protocol, and not its speed, runs on it.

It replaces the driver, and none of our own code: see ``cuda.cpp``.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright.evaluator.builds.builder import BuildOutcome, BuildService
from kernelwright.evaluator.driver import kernels

__all__ = ["Builds", "StandIn", "build", "host_module", "stand_in"]

_HERE = Path(__file__).parent


class StandIn(NamedTuple):
    """What a rehearsal runs on.

    library: path of the driver. images: our modules, in the order of ``kernels.MODULES``. affine: ``affine.cu``.
    """

    library: str
    images: list[bytes]
    affine: bytes


def stand_in(cache_dir: Path) -> StandIn:
    """Everything that rehearsals need, built once for each content."""
    images = [host_module(kernels.FOLDER / f"{name}.cu", cache_dir) for name in kernels.MODULES]
    return StandIn(str(build(cache_dir)), images, host_module(_HERE / "affine.cu", cache_dir))


class Builds:
    """A build service that makes modules for the stand-in out of CUDA sources, and everything else as always."""

    def __init__(self, builds: BuildService, cache_dir: Path) -> None:
        self._builds = builds
        self._cache_dir = cache_dir

    def __getattr__(self, name: str) -> Any:
        return getattr(self._builds, name)

    def build(self, message: Mapping[str, Any], source: str) -> BuildOutcome:
        """As ``BuildService.build``."""
        if message.get("language") != "cuda":
            return self._builds.build(message, source)
        name = str(message["name"])
        section = f'extern "C" __attribute__((used)) const char kw_section_{name}[] = "\\0.text.{name}";'
        text = f'#include "kw_host.h"\n{source}\nKW_EXPORT({name})\n{section}\n'
        path = self._cache_dir / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.cu"
        path.write_text(text)
        try:
            return BuildOutcome(path.stem, host_module(path, self._cache_dir), "", 0.0, False)
        except subprocess.CalledProcessError as error:
            return BuildOutcome(path.stem, None, str(error), 0.0, False)


def build(cache_dir: Path) -> Path:
    """The path of the stand-in, built once for each content."""
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-pthread", "-fnon-call-exceptions", "-Wl,-soname,libcuda.so.1"]
    return _built(_HERE / "cuda.cpp", cache_dir, flags, "libcuda.so.1")


def host_module(source: Path, cache_dir: Path, flags: Sequence[str] = ()) -> bytes:
    """An image of a ``.cu`` file for the stand-in's ``cuModuleLoadData``: the file as C++ of this machine."""
    whole = ["-std=c++17", "-O2", "-shared", "-fPIC", "-w", "-DKW_HOST", f"-I{_HERE}", *flags]
    return _built(source, cache_dir, whole, f"{source.stem}.so").read_bytes()


def _built(source: Path, cache_dir: Path, flags: Sequence[str], name: str) -> Path:
    texts = [source, *sorted(source.parent.glob("*.cuh")), _HERE / "kw_host.h"]
    content = hashlib.sha256(b"".join(path.read_bytes() for path in texts) + " ".join(flags).encode()).hexdigest()
    path = cache_dir / content[:16] / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{name}.{os.getpid()}")
        subprocess.run(["g++", *flags, "-x", "c++", "-o", str(made), str(source), "-ldl"], check=True)
        made.replace(path)
    return path
