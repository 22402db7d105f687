"""The MCP server: the protocol runs in its own thread, the referee in the main thread."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import Future

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

    Call this in the main thread of a process of its own. SIGINT and SIGTERM end it, and any output besides the protocol
    goes to standard error. The first call that needs the referee opens it. When the server ends, the current judgement
    is dropped.

    Returns:
        True if the client ended it, False if a signal did.

    Raises:
        StoreError: the store cannot be opened.
    """
    lane = Lane()
    with Store.open(settings.store) as store, Judging(settings, store.archive) as judging:
        server = build_server(Tools(Answers(settings, store), lane, judging))
        spoken: Future[None] = Future()
        # A daemon: after a signal, it may still be reading standard input, and nothing can interrupt that.
        arguments = (server, lane, settings.threads, spoken)
        threading.Thread(target=_speak, args=arguments, name="mcp", daemon=True).start()
        lane.run()
    if not lane.signalled:
        spoken.result()  # raises if a bug ended the protocol's thread
    return not lane.signalled


def build_server(tools: Tools) -> MCPServer:
    """A server with all tools, not yet bound to a transport."""
    server = MCPServer("kernelwright", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    writes = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)
    for tool in (tools.list_problems, tools.get_problem, tools.best, tools.history, tools.evaluate, tools.profile):
        server.add_tool(tool, annotations=reads)
    server.add_tool(tools.submit, annotations=writes)
    return server


def _speak(server: MCPServer, lane: Lane, threads: int, spoken: Future[None]) -> None:
    """Serve the protocol, away from the last cores, on which the referee times kernels.

    Signals are left to the main thread: a signal that this thread received would not wake it.
    """
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) > threads:
            os.sched_setaffinity(0, cpus[:-threads])  # for this thread and those that it starts
        anyio.run(_serve_client, server)
        spoken.set_result(None)
    except BaseException as error:  # noqa: BLE001 - raised again in the main thread
        spoken.set_exception(error)
    finally:
        lane.end()


async def _serve_client(server: MCPServer) -> None:
    """Serve until the client closes standard input or output."""
    try:
        await server.run_stdio_async()
    except* BrokenPipeError:
        pass  # the client closed our standard output
