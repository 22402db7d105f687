"""Runs documented commands in forks of one process that has imported kernelwright and torch already.

``Commands`` starts that process, and lays ``kernelwright`` and ``python`` into ``folder``: stand-ins that hand
their words, environment, working directory and standard files to it, and end as the fork ends. Each command still gets
a process of its own. Only the imports are not paid for again.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import runpy
import secrets
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

STAND_IN = """#!/bin/sh
exec {python} -IS {ask} {name} "$@"
"""
ASK = """
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    asked = json.dumps([sys.argv[1], sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(asked)
    status = int(server.makefile().read() or 70)
    if status < 0:
        os.kill(os.getpid(), -status)
    sys.exit(status)
"""


class Commands:
    """The process that forks, for as long as the ``with`` block lasts."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        folder.mkdir(parents=True)
        self._environment = environment
        self._token = secrets.token_hex(8)
        ask = folder / "ask.py"
        ask.write_text(ASK.format(address=address_of(self._token)))
        for name in ("kernelwright", "python"):
            path = folder / name
            path.write_text(STAND_IN.format(python=shlex.quote(sys.executable), ask=shlex.quote(str(ask)), name=name))
            path.chmod(0o755)

    def __enter__(self) -> Commands:
        command = [sys.executable, __file__, self._token]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=self._environment)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


# ------------------------------------------------------------------------------------------------ in the process


def address_of(token: str) -> str:
    """The name of the socket, which needs no file."""
    return f"\0kernelwright-documents-{token}"


def serve(address: str) -> NoReturn:
    """Import what commands import, and fork for each that asks."""
    import torch  # noqa: F401

    import kernelwright.campaign
    import kernelwright.cli
    import kernelwright.evaluator  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        print("ready", flush=True)
        while True:
            asking, _ = listening.accept()
            with asking:
                if os.fork() == 0:
                    listening.close()
                    attend(asking)


def attend(asking: socket.socket) -> NoReturn:
    """Run one command in a fork, and tell how it ended; end it where the one who asked has gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(asking, 8, 3)
    with asking.makefile("rb") as stream:
        asked = json.loads(stream.read(int.from_bytes(size, "big")))
    worker = os.fork()
    if worker == 0:
        asking.close()
        become(files, *asked)
    ended = os.pidfd_open(worker)
    if asking in select.select([asking, ended], [], [])[0]:
        os.kill(worker, signal.SIGTERM)
    status = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
    try:
        asking.sendall(str(status).encode())
    except OSError:
        status = 1  # nobody listens
    os._exit(abs(status))


def become(files: list[int], name: str, words: list[str], folder: str, environment: dict[str, str]) -> NoReturn:
    """Be the command: ``kernelwright`` with its words, or ``python`` with a script."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    status = 1
    try:
        sys.argv = [name, *words] if name == "kernelwright" else words
        sys.path[0] = os.path.dirname(sys.executable) if name == "kernelwright" else folder
        if name == "kernelwright":
            from kernelwright.cli import main

            main()
        runpy.run_path(words[0], run_name="__main__")
        status = 0
    except SystemExit as leave:
        status = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        if isinstance(leave.code, str):
            print(leave.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - the process's boundary
        traceback.print_exc()
    end(status)


def end(status: int) -> NoReturn:
    """Leave as an interpreter does."""
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    serve(address_of(sys.argv[1]))
