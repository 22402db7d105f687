"""A real client over real pipes: the command as a client starts it, with its own store and cache."""

from __future__ import annotations

import fcntl
import functools
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult, Implementation

ROOT = Path(__file__).parents[2]
PROBLEM = """
import torch
from torch import nn

ROWS = 16
COLUMNS = 96

PROBLEM = {
    "title": "Rectifier",
    "category": "pointwise",
    "inputs": {"x": {"fill": "normal", "low": -100.0, "high": 100.0}},
    "variants": {"cpu": [{"ROWS": 16, "COLUMNS": 96}, {"ROWS": 3, "COLUMNS": 7}]},
}


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
"""
QUICK = """
baselines = ["eager"]

[measurement]
looks = [12]
window_ms = 0.5
check_trials = 2
pool_bytes = "16MiB"
confirm_pairs = 5
confirm_max_pairs = 5
noise_bound = 0.3
"""  # tests run on busy machines, where a control strays far


class Agent:
    """A client of one server, for tests that are no coroutines."""

    def __init__(self, portal: BlockingPortal, client: Client, folder: Path) -> None:
        self._portal = portal
        self.client = client
        self.folder = folder

    def ask(self, method: str, *arguments: Any) -> Any:
        """What a method of the client answers."""
        return self._portal.call(getattr(self.client, method), *arguments)

    def start(self, tool: str, *, on_progress: Any = None, **arguments: Any) -> Future[CallToolResult]:
        """Begin a call; cancelling the future cancels the call."""
        call = functools.partial(self.client.call_tool, tool, arguments, progress_callback=on_progress)
        return self._portal.start_task_soon(call)

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a call that is no error."""
        result = self.start(tool, **arguments).result()
        assert not result.is_error, result.content
        return result.structured_content

    def error(self, tool: str, **arguments: Any) -> str:
        """The message of a call that is an error."""
        result = self.start(tool, **arguments).result()
        assert result.is_error, result.content
        return result.content[0].text

    @contextmanager
    def judging_held_up(self) -> Iterator[None]:
        """Meanwhile the right to use this machine's CPU is ours, and whoever judges waits for it."""
        with (self.folder / "cache" / "cpu-lane.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    return kept | {
        "PYTHONPATH": str(ROOT),
        "KERNELWRIGHT_DEVICE": "none",
        "KERNELWRIGHT_STORE": str(folder / "store.db"),
        "KERNELWRIGHT_CACHE_DIR": str(folder / "cache"),
        **more,
    }


@contextmanager
def connected(folder: Path, **variables: str) -> Iterator[Agent]:
    """A client with a server of its own, which works in ``folder``."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "kernelwright.cli", "mcp"],
        env=environment(folder, **variables),
        cwd=folder,
    )
    client = Client(server, client_info=Implementation(name="test agent", version="1"))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client):
        yield Agent(portal, client, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_cache):
    made = tmp_path_factory.mktemp("mcp")
    (made / "rectifier.py").write_text(PROBLEM)
    (made / "kernelwright.toml").write_text(QUICK)
    make_cache(made / "cache")
    return made


@pytest.fixture(scope="module")
def agent(folder):
    with connected(folder) as made:
        yield made


@pytest.fixture(scope="module")
def right(agent):
    """The example of the contract, which is right for the problem of these tests."""
    return agent.call("get_problem", problem="rectifier.py")["rules"]["example"]


@pytest.fixture(scope="module")
def connect():
    return connected


@pytest.fixture
def command():
    """How the server is started, and with which variables in a folder."""
    return [sys.executable, "-m", "kernelwright.cli", "mcp"], environment
