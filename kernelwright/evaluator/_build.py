"""Builds what a contestant asks for, in a sandbox of its own, from the source alone.

A contestant has no compiler. Its ``cpp(SOURCE)`` sends source and flags here; a builder that never meets the
candidate's Python compiles them; only the referee stores the product, under the hash of source, flags and compiler. So
no candidate can put a product where another one would find it, and equal sources are built once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright import inline
from kernelwright.errors import MissingToolError
from kernelwright.sandbox import Limits, Sandbox, product_memfd

MAX_PRODUCT_BYTES = 32 << 20
_CACHE_BYTES = 1 << 30  # of products kept; the oldest go first
_LOG_BYTES = 16_000
_BUILD_TRIES = 3  # where the compiler is killed and no limit of ours did it


class BuildOutcome(NamedTuple):
    """One build: its key, product (None where it failed), the compiler's messages (hostile text), seconds."""

    key: str
    product: bytes | None
    log: str
    seconds: float
    cached: bool
    problem: str = ""  # "timeout", "oom", ... where the builder itself was stopped

    def product_fd(self) -> int | None:
        """A sealed memory file that holds the product; the caller closes it."""
        return None if self.product is None else product_memfd(self.product)


class BuildService:
    """Compiles in ``sandbox``, keeps products under ``cache_dir``."""

    def __init__(self, sandbox: Sandbox, cache_dir: Path, *, timeout_s: float, memory_bytes: int) -> None:
        self._sandbox = sandbox
        self._cache = cache_dir / "products"
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._prune()

    def _prune(self) -> None:
        """Forget the products that were not used for longest where all together take too much."""
        entries = []
        for path in self._cache.glob("*/product.so"):
            with contextlib.suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime, status.st_size, path.parent))
        total = sum(size for _, size, _ in entries)
        for _, size, folder in sorted(entries):
            if total <= _CACHE_BYTES:
                return
            shutil.rmtree(folder, ignore_errors=True)
            total -= size

    def build(self, message: Mapping[str, Any], source: str) -> BuildOutcome:
        """Build one request as it came over the wire; nonsense in it is a failed build with a reason."""
        started = time.monotonic()
        language, flags = message.get("language"), message.get("flags")
        if language not in ("cpp", "cuda", "torch_extension"):
            return BuildOutcome("", None, "unknown language of a build request", 0.0, False)
        if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
            return BuildOutcome("", None, "flags must be a list of strings", 0.0, False)
        try:
            request = inline.BuildRequest(language, source, tuple(flags), str(message.get("name", "")))
            command = inline.compile_command(request, "/job/product.so", "/in/kernel.cpp")
        except inline.BuildError as error:
            return BuildOutcome("", None, str(error), time.monotonic() - started, False)
        key = hashlib.sha256(f"{request.key}\0{inline.compiler_version()}".encode()).hexdigest()
        stored = self._load(key)
        if stored is not None:
            product, log = stored
            return BuildOutcome(key, product, log, time.monotonic() - started, True)
        return self._compile(key, command, source, started)

    def _compile(self, key: str, command: list[str], source: str, started: float) -> BuildOutcome:
        script = f"{shlex.join(command)} && cat /job/product.so"
        limits = Limits(
            wall_s=self._timeout_s, output_bytes=MAX_PRODUCT_BYTES, memory_bytes=self._memory_bytes, allow_exec=True
        )
        for _ in range(_BUILD_TRIES):
            done = self._sandbox.run(["/bin/sh", "-c", script], files={"kernel.cpp": source.encode()}, limits=limits)
            if not (done.reason == "signal" or b"Killed signal" in done.stderr):
                break
        seconds = time.monotonic() - started
        log = done.stderr[:_LOG_BYTES].decode(errors="replace")
        if done.returncode == 127 and "not found" in log:
            raise MissingToolError("no C++ compiler in the sandbox", hint="install g++, for example: apt install g++")
        if done.reason:
            return BuildOutcome(key, None, f"the build was stopped ({done.reason})\n{log}", seconds, False, done.reason)
        if done.returncode != 0:
            return BuildOutcome(key, None, log or f"the compiler ended with {done.returncode}", seconds, False)
        self._keep(key, done.stdout, log)
        return BuildOutcome(key, done.stdout, log, seconds, False)

    def _load(self, key: str) -> tuple[bytes, str] | None:
        folder = self._cache / key
        try:
            product = (folder / "product.so").read_bytes()
            os.utime(folder / "product.so")
            digest, _, log = (folder / "log").read_text().partition("\n")
        except OSError:
            return None
        return (product, log) if hashlib.sha256(product).hexdigest() == digest else None

    def _keep(self, key: str, product: bytes, log: str) -> None:
        """Store atomically; a full disk only costs the next build."""
        folder = self._cache / key
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in (
                ("product.so", product),
                ("log", f"{hashlib.sha256(product).hexdigest()}\n{log}".encode()),
            ):
                temporary = folder / f".{name}.{os.getpid()}"
                temporary.write_bytes(data)
                temporary.replace(folder / name)
        except OSError:
            return
