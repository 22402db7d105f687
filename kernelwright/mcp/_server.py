"""Puts the parts together: the protocol in a thread of its own, the referee in the main one."""

from __future__ import annotations

import os
import threading

import anyio
from mcp.server import MCPServer
from mcp_types import ToolAnnotations

from kernelwright import __version__
from kernelwright.config import Settings
from kernelwright.mcp._answers import Answers
from kernelwright.mcp._contract import INSTRUCTIONS
from kernelwright.mcp._judging import Judging
from kernelwright.mcp._lane import Lane
from kernelwright.mcp._tools import Tools
from kernelwright.store import Store


def serve(settings: Settings) -> bool:
    """Serve MCP on standard input and output until the client closes standard input.

    For the main thread of a process that does nothing else: SIGINT and SIGTERM end it, and what it writes to standard
    output besides the protocol goes to standard error. The referee is opened by the first call that needs it. What is
    in hand when the server ends is dropped.

    Returns:
        True where the client ended it, False where a signal did.

    Raises:
        StoreError: the store cannot be opened.
    """
    lane = Lane()
    with Store.open(settings.store) as store, Judging(settings) as judging:
        server = build_server(Tools(Answers(settings, store), lane, judging))
        # A daemon: after a signal, it may be reading standard input still, and nothing can stop it from that.
        thread = threading.Thread(target=_speak, args=(server, lane, settings.threads), name="mcp", daemon=True)
        thread.start()
        lane.run()
    return not lane.signalled


def build_server(tools: Tools) -> MCPServer:
    """A server with all tools, bound to no transport yet."""
    server = MCPServer("kernelwright", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    writes = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    for tool in (tools.list_problems, tools.get_problem, tools.best, tools.history, tools.evaluate, tools.profile):
        server.add_tool(tool, annotations=reads)
    server.add_tool(tools.submit, annotations=writes)
    return server


def _speak(server: MCPServer, lane: Lane, threads: int) -> None:
    """Serve the protocol, away from the cores on which the referee times: its last ones."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) > threads:
        os.sched_setaffinity(0, cpus[:-threads])  # of this thread, and of those that it starts
    try:
        anyio.run(server.run_stdio_async)
    except* BrokenPipeError:
        pass  # the client has gone without closing its side first
    finally:
        lane.end()
