"""A real server in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from browser_store import environment_of


@contextmanager
def serving(store: Path, *words: str) -> Iterator[str]:
    """A server in a process of its own; its address without the slash at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kernelwright.cli", "serve", "--port", "0", "--json", *words],
        cwd=store.parent,
        env=environment_of(store),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)["url"].rstrip("/")
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert "Traceback" not in said, said
