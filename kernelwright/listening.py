"""Sockets that servers of this machine listen on."""

from __future__ import annotations

import ipaddress
import socket

from kernelwright.errors import UsageError

_WAITING = 128  # connections that were made and not yet accepted


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; connections are accepted from now on. Port 0 takes one that is free.

    Raises:
        UsageError: the port is taken, or the address is none of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named, since asyncio turns Nagle's algorithm off for TCP alone: a page would wait 40 ms else.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_WAITING)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host}:{port}: {error.strerror}", hint="choose another --port, or another --host"
        ) from None
    return listener


def address_of(host: str, listener: socket.socket) -> str:
    """The URL of a server on a socket."""
    return f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
