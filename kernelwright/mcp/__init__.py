"""The referee as an MCP server: any agent that speaks the protocol can act as Coder.

Candidates are judged by the same referee, and answered with the same JSON, as on the command line.
"""

from __future__ import annotations

from kernelwright.mcp._server import serve

__all__ = ["serve"]
