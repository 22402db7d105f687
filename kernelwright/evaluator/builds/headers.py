"""Precompiled headers for the builder: parsing ``<cmath>`` alone takes longer than compiling most kernels.

A candidate's text is never precompiled. The system headers that a source includes at its very top are listed anew,
sorted, in a file of our own. The compiler reads this file before the source. In the source, include guards then make
the headers empty, so the product stays the same to the byte. The compiler itself checks that a precompiled header fits
the options and macros of a build. If not, it reads the headers' text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kernelwright.evaluator.builds.cache import ProductCache
from kernelwright.evaluator.builds.referee_code import compiler_version
from kernelwright.inline import toolchain
from kernelwright.sandbox import Limits, Sandbox

HEADER_NAME = "preamble.h"
_CACHE_BYTES = 512 << 20
_HEADER_BYTES = 64 << 20  # a precompiled header larger than this takes longer to hand over than it saves
# Neither kind of comment may hold a backslash or its trigraph. They could splice lines and end the comment elsewhere.
_UNSPLICED = r"(?:[^\n\\?]|\?(?!\?))"
_BLANK = re.compile(rf"(?:[ \t\r\n]+|//{_UNSPLICED}*(?=\n)|/\*(?:{_UNSPLICED}|\n)*?\*/)*")
_INCLUDE = re.compile(r"#[ \t]*include[ \t]*<([a-z0-9_]+(?:\.h)?)>[ \t]*(?:(?=//)|(?=/\*)|\n)")


def leading_headers(source: str) -> tuple[str, ...]:
    """Names of the system headers that ``source`` includes before anything else, sorted.

    Any other text ends the list: a definition, a condition, a comment that continues after a backslash.
    """
    names, at = set(), 0
    while found := _INCLUDE.match(source, _after_blanks(source, at)):
        names.add(found[1])
        at = found.end()
    return tuple(sorted(names))


def _after_blanks(source: str, at: int) -> int:
    blank = _BLANK.match(source, at)
    return at if blank is None else blank.end()


class PrecompiledHeaders:
    """Precompiled headers under ``cache_dir``, made in ``sandbox`` on the second request for the same ones."""

    def __init__(self, sandbox: Sandbox, cache_dir: Path, limits: Limits, cpus: Sequence[int] | None = None) -> None:
        """``cpus``: processors for the compiler; None for all processors of this process."""
        self._cpus = cpus
        self._sandbox = sandbox
        self._cache = ProductCache(cache_dir / "headers", _CACHE_BYTES)
        self._limits = replace(limits, output_bytes=_HEADER_BYTES)

    def files(self, source: str, flags: Sequence[str]) -> Mapping[str, bytes]:
        """Files to put beside a C-ABI source with these ``flags``; none if they would save no time.

        With such files, the compiler needs the option ``-include`` with :data:`HEADER_NAME`.
        """
        names = leading_headers(source)
        if not names:
            return {}
        text = "".join(f"#include <{name}>\n" for name in names)
        command = toolchain.header_command(flags, f"/in/{HEADER_NAME}", "/job/header.gch")
        key = hashlib.sha256(f"{command}\0{text}\0{compiler_version()}".encode()).hexdigest()
        if (stored := self._cache.load(key)) is None and self._cache.is_first_request(key):
            return {}
        header = self._make(key, text, command) if stored is None else stored[0]
        return {HEADER_NAME: text.encode(), f"{HEADER_NAME}.gch": header} if header else {}

    def _make(self, key: str, text: str, command: list[str]) -> bytes:
        """Make the precompiled header; empty on failure. A failure is kept, too, if the next attempt would fail."""
        script = ["/bin/sh", "-c", '"$@" && cat /job/header.gch', "sh", *command]
        done = self._sandbox.run(
            script, files={HEADER_NAME: text.encode()}, limits=self._limits, cpus=self._cpus, warm=True
        )
        if done.reason in ("timeout", "oom", "signal") or b"Killed signal" in done.stderr:
            return b""
        header = b"" if done.reason or done.returncode != 0 else done.stdout  # too large, or no such header
        self._cache.keep(key, header, "")
        return header
