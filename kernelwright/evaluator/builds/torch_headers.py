"""torch's headers, precompiled for the C++ sources of ``load_inline``: half a gigabyte that saves half of each build.

The file is made from our own text, on the second request for the same options, and mounted read-only for builders. The
compiler itself checks that it fits the options and macros of a build. If not, it reads the headers' text.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kernelwright import inline
from kernelwright.errors import KernelwrightError
from kernelwright.evaluator.builds.referee_code import compiler_version
from kernelwright.inline import options, requests, toolchain
from kernelwright.sandbox import Limits, Mount, Sandbox

__all__ = ["PREAMBLE", "TorchHeaders", "headers_digest"]

PREAMBLE = "/headers/preamble.h"
_FOLDER, _NAME = PREAMBLE.rsplit("/", 1)
_MOST_KEPT = 3  # of half a gigabyte each
_LONGEST_S = 240.0
_ABANDONED_S = 3600.0  # age at which an unfinished folder counts as abandoned
_USUAL = {(), ("-O2",), ("-ffast-math",)}  # options that are worth it, besides those of all builds
_ALL_HAVE = {"-O3", "-march=native", "-fopenmp", "-fPIC", "-std=c++20"}
_ROOM_BYTES = 2 << 30  # free disk space that is needed to make one
_RUNGS = ("bwrap", "docker")  # sandboxes that can mount a folder of the host


@functools.lru_cache(maxsize=1)
def headers_digest() -> str:
    """A hash of our own headers that replace torch's."""
    folders = (options.fewer_headers("cpp"), options.fewer_headers("cuda"))
    texts = [path.read_text() for folder in folders for path in sorted(folder.rglob("*.h"))]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _tuning(flags: Sequence[str]) -> tuple[str, ...]:
    """The options that a precompiled header must share with a build, besides those of all builds."""
    return tuple(flag for flag in flags if not flag.startswith(("-D", "-l")) and flag not in _ALL_HAVE)


class TorchHeaders:
    """Precompiled headers under ``cache_dir``, made in ``sandbox``."""

    def __init__(self, sandbox: Sandbox, cache_dir: Path, limits: Limits, cpus: Sequence[int] | None = None) -> None:
        """``cpus``: processors for the compiler; None for all processors of this process."""
        self._cpus = cpus
        self._sandbox = sandbox
        self._root = cache_dir / "torch_headers"
        self._limits = replace(limits, wall_s=_LONGEST_S)

    def mount(self, flags: Sequence[str]) -> Mount | None:
        """The folder to mount for a build with these flags. The compiler then includes :data:`PREAMBLE` first.

        None if the folder does not exist yet, or if this sandbox cannot mount it.
        """
        if self._sandbox.name not in _RUNGS or _tuning(flags) not in _USUAL:
            return None
        folder = self._folder(flags)
        with contextlib.suppress(OSError):
            if (folder / f"{_NAME}.gch").exists():
                os.utime(folder)
                return Mount(str(folder), _FOLDER)
        return None

    def is_wanted(self, flags: Sequence[str]) -> bool:
        """Whether to make the header now: the flags were requested before, and no attempt succeeded or was refused."""
        if self._sandbox.name not in _RUNGS or _tuning(flags) not in _USUAL:
            return False
        asked = self._folder(flags).with_suffix(".asked")
        with contextlib.suppress(OSError):
            if asked.exists():
                return not asked.with_suffix("").exists() and shutil.disk_usage(self._root).free > _ROOM_BYTES
            asked.parent.mkdir(parents=True, exist_ok=True)
            asked.touch()
        return False

    def make(self, flags: Sequence[str]) -> None:
        """Make the header. If the compiler refuses, a folder without it is kept, and it is not tried again."""
        folder = self._folder(flags)
        try:
            made = Path(tempfile.mkdtemp(dir=self._root, prefix="making-"))
        except OSError:
            return
        try:
            made.chmod(0o1777)  # the builder is another user
            (made / _NAME).write_text(requests.torch_preamble())
            command = requests.torch_preamble_command(_tuning(flags), PREAMBLE, f"{PREAMBLE}.gch")
            done = self._sandbox.run(
                command,
                mounts=[Mount(str(made), _FOLDER, writable=True)],
                limits=self._limits,
                cpus=self._cpus,
                warm=True,
            )
            if done.reason or b"No space left" in done.stderr:  # it may work another time
                return
            if done.returncode != 0:
                (made / f"{_NAME}.gch").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                os.chown(made / f"{_NAME}.gch", os.getuid(), os.getgid())
            made.chmod(0o755)
            with contextlib.suppress(OSError):  # another process was faster
                made.rename(folder)
        except (OSError, KernelwrightError):  # it only saves time
            pass
        finally:
            shutil.rmtree(made, ignore_errors=True)
            self._forget()

    def _folder(self, flags: Sequence[str]) -> Path:
        command = requests.torch_preamble_command(_tuning(flags), PREAMBLE, f"{PREAMBLE}.gch")
        content = f"{command}\0{headers_digest()}\0{compiler_version()}\0{inline.torch_version()}"
        content += f"\0{toolchain.processor()}"
        return self._root / hashlib.sha256(content.encode()).hexdigest()

    def _forget(self) -> None:
        """Remove the folders that were used longest ago, and abandoned unfinished ones."""
        with contextlib.suppress(OSError):
            folders = [entry for entry in self._root.iterdir() if entry.is_dir()]
            kept = sorted((f for f in folders if "-" not in f.name), key=lambda f: f.stat().st_mtime, reverse=True)
            stale = [f for f in folders if "-" in f.name and f.stat().st_mtime < time.time() - _ABANDONED_S]
            for folder in (*kept[_MOST_KEPT:], *stale):
                shutil.rmtree(folder, ignore_errors=True)
                folder.with_suffix(".asked").unlink(missing_ok=True)
