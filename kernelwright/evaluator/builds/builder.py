"""Builds the sources that contestants send, each in a separate sandbox and from the source alone.

A contestant has no compiler. Its ``cpp(SOURCE)`` sends source and flags to the referee. A builder that never meets the
candidate's Python compiles them. Only the referee stores the product, under the hash of source, flags and compiler. So
no candidate can put a product where another one would find it, and equal sources are built once.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kernelwright import inline
from kernelwright.errors import MissingToolError, SandboxError
from kernelwright.evaluator.builds.cache import ProductCache
from kernelwright.evaluator.builds.cuda_libraries import lacking_library
from kernelwright.evaluator.builds.emulation import (
    MAX_SOURCE_BYTES,
    assembly_command,
    cubin_commands,
    cuda_part,
    disassembly,
    emulated_source,
    emulator_command,
    emulator_version,
)
from kernelwright.evaluator.builds.gpu_resources import Assembled
from kernelwright.evaluator.builds.headers import HEADER_NAME, PrecompiledHeaders
from kernelwright.evaluator.builds.openmp import (
    RUNTIME_OBJECT,
    runtime_command,
    runtime_files,
    runtime_version,
    watched_command,
    watched_flags,
)
from kernelwright.evaluator.builds.referee_code import compiler_version
from kernelwright.evaluator.builds.torch_headers import PREAMBLE, TorchHeaders, headers_digest
from kernelwright.inline import cuda_toolchain, requests
from kernelwright.sandbox import Limits, Mount, Sandbox, product_memfd

MAX_PRODUCT_BYTES = 32 << 20
_CACHE_BYTES = 1 << 30  # of kept products; the oldest are removed first
_LOG_BYTES = 16_000
_ARCHITECTURE = "sm_90"  # the architecture for which CUDA sources must compile
_EXTENSION_TIMES = 4  # factor on the time limit of device extensions, which read torch's headers twice
_MOST_REFUSED = 32  # failed builds that are remembered, each until it is requested again
_BUILD_TRIES = 3  # if the compiler is killed, but not by our limits


class BuildOutcome(NamedTuple):
    """One build: its key, product (None on failure), the compiler's messages (untrusted text), seconds."""

    key: str
    product: bytes | None
    log: str
    seconds: float
    cached: bool
    problem: str = ""  # "timeout", "oom", ... if the builder itself was stopped
    uncheckable: str = ""  # why a source that compiles for its device cannot be run here

    def product_fd(self) -> int | None:
        """A sealed memory file that holds the product; the caller closes it."""
        return None if self.product is None else product_memfd(self.product)


class BuildService:
    """Compiles in ``sandbox`` and keeps products under ``cache_dir``."""

    def __init__(
        self,
        sandbox: Sandbox,
        cache_dir: Path,
        *,
        timeout_s: float,
        memory_bytes: int,
        architecture: str = "",
        cpus: Sequence[int] | None = None,
    ) -> None:
        """``architecture``: of this machine's device, for which CUDA is built; empty without a device.

        ``cpus``: processors for the compilers; None for all processors of this process.
        """
        self._cpus = cpus
        self._architecture = architecture
        self._sandbox = sandbox
        self._cache = ProductCache(cache_dir / "products", _CACHE_BYTES)
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._headers = PrecompiledHeaders(sandbox, cache_dir, self._limits(), cpus)
        self._torch_headers = TorchHeaders(sandbox, cache_dir, self._limits(), cpus)
        self._refused: dict[str, BuildOutcome] = {}  # by key: builds that failed a moment ago

    def _limits(self, times: int = 1) -> Limits:
        return Limits(
            wall_s=times * self._timeout_s,
            output_bytes=MAX_PRODUCT_BYTES,
            memory_bytes=self._memory_bytes,
            allow_exec=True,
        )

    def build(self, message: Mapping[str, Any], source: str) -> BuildOutcome:
        """Build one request from the wire. An invalid request is a failed build with a reason.

        A failure in a build lane is remembered. The next equal request gets it at once, while a device may wait.
        """
        asked = hashlib.sha256(repr((sorted(message.items(), key=str), source)).encode()).hexdigest()
        if (refused := self._refused.pop(asked, None)) is not None:
            return refused._replace(cached=True)
        made = self._build(message, source)
        if self._cpus is not None and made.product is None and not made.problem and _blames_the_source(made.log):
            self._refused[asked] = made
            for old in list(self._refused)[:-_MOST_REFUSED]:
                self._refused.pop(old, None)
        return made

    def _build(self, message: Mapping[str, Any], source: str) -> BuildOutcome:
        started = time.monotonic()
        language, flags = message.get("language"), message.get("flags")
        if language not in ("cpp", "cuda", "torch_extension", "torch_cuda_extension"):
            return BuildOutcome("", None, "unknown language of a build request", 0.0, False)
        if not isinstance(flags, list) or not all(isinstance(flag, str) for flag in flags):
            return BuildOutcome("", None, "flags must be a list of strings", 0.0, False)
        try:
            request = inline.BuildRequest(language, source, tuple(flags), str(message.get("name", "")))
            if "cuda" in language and self._architecture:
                return self._build_for_device(request, started)
            if "cuda" in language:
                return self._build_cuda(request, started)
            if language == "torch_extension":
                return self._build_extension(request, started)
            command = inline.compile_command(request, "/job/product.so", "/in/kernel.cpp")
        except inline.BuildError as error:
            return BuildOutcome("", None, str(error), time.monotonic() - started, False)
        key = hashlib.sha256(f"{request.key}\0{compiler_version()}".encode()).hexdigest()
        stored = self._cache.load(key)
        if stored is not None:
            product, log = stored
            return BuildOutcome(key, product, log, time.monotonic() - started, True)
        files = {"kernel.cpp": source.encode()}
        if headers := self._headers.files(source, request.flags):
            files |= headers
            command += ["-include", f"/in/{HEADER_NAME}"]
        return self._compile(key, command, files, started)

    def _build_extension(self, request: inline.BuildRequest, started: float) -> BuildOutcome:
        """Build a C++ extension with the few of torch's headers that most need, or with all headers if that fails.

        Raises:
            BuildError: an option is not allowed, or the extension's name is no identifier.
        """
        fewer, all_of_them = (
            inline.compile_command(request, "/job/product.so", "/in/kernel.cpp", fewer=fewer) for fewer in (True, False)
        )
        compiler = f"{shlex.join(fewer)}\0{compiler_version()}\0{inline.torch_version()}\0{headers_digest()}"
        key = hashlib.sha256(f"{request.key}\0{compiler}".encode()).hexdigest()
        if (stored := self._cache.load(key)) is not None:
            return BuildOutcome(key, stored[0], stored[1], time.monotonic() - started, True)
        files = {"kernel.cpp": request.source.encode()}
        with self._torch_preamble(request.source, request.flags) as mounts:
            try:
                before = ["-include", PREAMBLE] if mounts else []
                made = self._compile(key, [*fewer, *before], files, started, mounts=mounts)
            except SandboxError:
                if not mounts:
                    raise
                made = self._compile(key, fewer, files, started)  # the headers were removed just now
        if made.product is not None or made.problem:
            return made
        with_all = self._compile(key, [*all_of_them, "-Wfatal-errors"], files, started)  # first error only: saves time
        if with_all.product is None and _first_error(made.log) == _first_error(with_all.log):
            return made._replace(seconds=with_all.seconds)
        return with_all

    @contextlib.contextmanager
    def _torch_preamble(self, source: str, flags: Sequence[str]) -> Iterator[list[Mount]]:
        """Yield the mounts for a C++ source that begins with torch's header. Missing headers are made in parallel."""
        if not source.startswith(requests.torch_preamble()):
            yield []
            return
        mount = self._torch_headers.mount(flags)
        if mount is not None or not self._torch_headers.is_wanted(flags):
            yield [] if mount is None else [mount]
            return
        beside = ThreadPoolExecutor(1, "torch headers")
        try:
            making = beside.submit(self._torch_headers.make, flags)
            yield []
            making.result()
        finally:
            beside.shutdown(wait=False)  # do not wait for it after an interrupt

    def build_watched(self, request: inline.BuildRequest) -> BuildOutcome:
        """Build a C++ request's product with accesses watched for data races, run by threads that take turns.

        Raises:
            BuildError: an option is not allowed, or the extension's name is no identifier.
        """
        started = time.monotonic()
        runtime = self._watching_runtime(started)
        if runtime.product is None:
            return runtime
        extension = request.language == "torch_extension"
        versions = f"{compiler_version()}\0{runtime_version()}\0"
        versions += f"{inline.torch_version()}\0{headers_digest()}" if extension else ""
        key = hashlib.sha256(f"watched\0{request.key}\0{versions}".encode()).hexdigest()
        if (stored := self._cache.load(key)) is not None:
            return BuildOutcome(key, stored[0], stored[1], time.monotonic() - started, True)
        files = {"kernel.cpp": request.source.encode(), RUNTIME_OBJECT: runtime.product}
        if extension:
            return self._watched_extension(key, request, files, started)
        headers = self._headers.files(request.source, watched_flags(request.flags))
        before = ["-include", f"/in/{HEADER_NAME}"] if headers else []
        return self._compile(key, watched_command(request, before=before), files | dict(headers), started)

    def _watched_extension(
        self, key: str, request: inline.BuildRequest, files: Mapping[str, bytes], started: float
    ) -> BuildOutcome:
        with self._torch_preamble(request.source, watched_flags(request.flags)) as mounts:
            before = ["-include", PREAMBLE] if mounts else []
            quick = watched_command(request, fewer=True, before=before)
            made = self._compile(key, quick, files, started, mounts=mounts)
        if made.product is not None or made.problem:
            return made
        return self._compile(key, watched_command(request), files, started)

    def _watching_runtime(self, started: float) -> BuildOutcome:
        """The object that watched products are linked to; it may not compile on every machine."""
        key = hashlib.sha256(f"openmp\0{runtime_version()}\0{compiler_version()}".encode()).hexdigest()
        if (stored := self._cache.load(key)) is not None:
            return BuildOutcome(key, stored[0], stored[1], time.monotonic() - started, True)
        return self._compile(key, runtime_command("/job/product.so"), runtime_files(), started)

    def _build_cuda(self, request: inline.BuildRequest, started: float) -> BuildOutcome:
        """Build CUDA without a device: test whether it compiles for one, and make a product that runs on the CPU.

        Raises:
            BuildError: an option is not allowed.
            MissingToolError: no compiler for CUDA.
        """
        inline.cuda_flags(request.flags)
        if len(request.source) > MAX_SOURCE_BYTES:
            text = f"a CUDA source has at most {MAX_SOURCE_BYTES >> 10} KB, not {len(request.source) >> 10} KB"
            return BuildOutcome("", None, text, time.monotonic() - started, False)
        try:
            commands = cubin_commands(request, _ARCHITECTURE)
            compilers = f"{cuda_toolchain.cuda_compiler()}\0{compiler_version()}\0{emulator_version()}"
        except inline.BuildError as error:
            raise MissingToolError(error.message, hint="or choose another backend: --backend cpp") from None
        key = hashlib.sha256(f"{request.key}\0{_ARCHITECTURE}\0{compilers}".encode()).hexdigest()
        stored = self._cache.load(key)
        if stored is not None:
            return BuildOutcome(key, stored[0], stored[1], time.monotonic() - started, True)
        text = cuda_toolchain.cubin_source(cuda_part(request), request.name if request.language == "cuda" else "")
        with ThreadPoolExecutor(1, "emulated") as beside:
            emulating = beside.submit(self._emulated, request, started)
            for command in commands:  # the small headers first; torch's own if they lack something
                cubin = _blamed(self._compile("", command, {"kernel.cu": text.encode()}, started), text)
                if cubin.product is not None or cubin.problem or cubin.uncheckable:
                    break
            emulated = emulating.result()
        if cubin.product is None:
            return cubin._replace(key=key)
        if isinstance(emulated, str):
            reason = f"it compiles for {_ARCHITECTURE}, and the CPU's emulator does not take it: {emulated}"
            return BuildOutcome(key, None, "", time.monotonic() - started, False, uncheckable=reason)
        if emulated.product is None and emulated.problem != "timeout":
            first = next((line for line in emulated.log.splitlines() if "rror" in line), emulated.log[:200])
            reason = f"it compiles for {_ARCHITECTURE}, and the CPU's emulator does not take it: {first.strip()[:300]}"
            return emulated._replace(key=key, uncheckable=reason)
        if emulated.product is not None:
            self._cache.keep(key, emulated.product, cubin.log)
        return emulated._replace(key=key, log=cubin.log)

    def _emulated(self, request: inline.BuildRequest, started: float) -> BuildOutcome | str:
        """A product that runs a request's kernels on the CPU, or the reason why it cannot be made."""
        try:
            rewritten = emulated_source(request)
        except ValueError as error:
            return str(error)
        command = emulator_command(request, "/in/kernel.cpp", "/job/product.so")
        return self._compile("", command, {"kernel.cpp": rewritten.encode()}, started)

    def _build_for_device(self, request: inline.BuildRequest, started: float) -> BuildOutcome:
        """Build CUDA for this machine's device: machine code of kernels, or an extension with host code.

        Raises:
            BuildError: an option is not allowed.
            MissingToolError: no compiler for CUDA.
        """
        inline.cuda_flags(request.flags)
        try:
            compilers = f"{cuda_toolchain.cuda_compiler()}\0{compiler_version()}"
            if request.language == "torch_cuda_extension":
                return self._build_device_extension(request, compilers, started)
            command = cuda_toolchain.cubin_command(
                self._architecture, request.name, request.flags, "/in/kernel.cu", "/job/product.so"
            )
        except inline.BuildError as error:
            raise MissingToolError(error.message, hint="or choose another backend: --backend cpp") from None
        key = hashlib.sha256(f"device\0{request.key}\0{shlex.join(command)}\0{compilers}".encode()).hexdigest()
        if (stored := self._cache.load(key)) is not None:
            return BuildOutcome(key, stored[0], stored[1], time.monotonic() - started, True)
        files = {"kernel.cu": cuda_toolchain.cubin_source(request.source, request.name).encode()}
        return _blamed(self._compile(key, command, files, started), request.source)

    def _build_device_extension(self, request: inline.BuildRequest, compilers: str, started: float) -> BuildOutcome:
        """Build an extension for this machine's device with few of torch's headers, or with all if that fails."""
        sources, out = ("/in/main.cpp", "/in/kernel.cu"), "/job/product.so"
        host, kernels = requests.extension_parts(request.source)
        files = {"main.cpp": host.encode(), "kernel.cu": kernels.encode()}

        def command(*, fewer: bool, preamble: str = "") -> list[str]:
            return cuda_toolchain.extension_command(
                self._architecture, request.flags, request.name, sources, out, fewer=fewer, preamble=preamble
            )

        named = f"device\0{request.key}\0{shlex.join(command(fewer=True))}\0{compilers}\0{inline.torch_version()}"
        named += headers_digest()
        key = hashlib.sha256(named.encode()).hexdigest()
        if (stored := self._cache.load(key)) is not None:
            return BuildOutcome(key, stored[0], stored[1], time.monotonic() - started, True)
        limits = self._limits(_EXTENSION_TIMES)
        with self._torch_preamble(host, ()) as mounts:
            quick = command(fewer=True, preamble=PREAMBLE if mounts else "")
            made = self._compile(key, quick, files, started, limits, mounts=mounts)
        if made.product is None and not made.problem:
            made = self._compile(key, command(fewer=False), files, started, limits)
        return _blamed(made, kernels)

    def machine_code(self, request: inline.BuildRequest, architecture: str) -> tuple[str, str] | None:
        """The assembler's messages on a CUDA request's kernels, and their machine code as text.

        None if they do not compile for ``architecture``. The listing is empty without a disassembler.
        """
        compiler = f"{cuda_toolchain.cuda_compiler()}\0{emulator_version()}"
        key = hashlib.sha256(f"listing\0{request.key}\0{architecture}\0{compiler}".encode()).hexdigest()
        stored = self._cache.load(key)
        if stored is None:
            text = cuda_toolchain.cubin_source(cuda_part(request), request.name if request.language == "cuda" else "")
            for command in cubin_commands(request, architecture):
                listed = ["/bin/sh", "-c", f"{shlex.join(command)} && {disassembly('/job/product.so')}"]
                made = self._compile(key, listed, {"kernel.cu": text.encode()}, time.monotonic())
                if made.product is not None:
                    break
            if made.product is None:
                return None
            stored = made.product, made.log
        listing, said = stored
        return said, listing.decode(errors="replace")

    def assemble(self, ptx: str, architecture: str) -> Assembled | None:
        """Assemble PTX for one architecture; None if it is refused, or without an assembler."""
        command = assembly_command(architecture, "/in/kernel.ptx", "/job/product.so")
        if command is None:
            return None
        key = hashlib.sha256(f"assembled\0{architecture}\0{command}\0{ptx}".encode()).hexdigest()
        stored = self._cache.load(key)
        if stored is None:
            made = self._compile(key, ["/bin/sh", "-c", command], {"kernel.ptx": ptx.encode()}, time.monotonic())
            if made.product is None:
                return None
            stored = made.product, made.log
        return Assembled(stored[1], stored[0].decode(errors="replace"))

    def _compile(
        self,
        key: str,
        command: list[str],
        files: Mapping[str, bytes],
        started: float,
        limits: Limits | None = None,
        mounts: Sequence[Mount] = (),
    ) -> BuildOutcome:
        script = f"{shlex.join(command)} && cat /job/product.so"
        for _ in range(_BUILD_TRIES):
            done = self._sandbox.run(
                ["/bin/sh", "-c", script],
                files=files,
                mounts=mounts,
                limits=limits or self._limits(),
                cpus=self._cpus,
                warm=True,
            )
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
        if key:
            self._cache.keep(key, done.stdout, log)
        return BuildOutcome(key, done.stdout, log, seconds, False)


def _blamed(made: BuildOutcome, source: str) -> BuildOutcome:
    """A build of CUDA, marked as uncheckable if it failed because this machine lacks a library."""
    if made.product is not None or made.problem:
        return made
    return made._replace(uncheckable=lacking_library(source, made.log, cuda_toolchain.header_folders()))


def _first_error(log: str) -> str:
    """The compiler's first error, without its position."""
    return next((line.partition("error: ")[2] for line in log.splitlines() if "error: " in line), "")


def _blames_the_source(log: str) -> bool:
    """Whether a failed build would fail again."""
    return "error" in log and not any(word in log for word in ("No space left", "quota exceeded", "llocat"))
