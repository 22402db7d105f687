"""Asks for builds of what is no source: pipes, folders, a terabyte of nothing, a file that shrinks.

row: symlink and FIFO tricks; sparse terabytes: sources to build
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import array
import json
import os
import socket
import stat
import struct
import threading

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


FOLDER = "/dev/fd"


def referee():
    """The socket over which the referee asks."""
    for name in os.listdir(FOLDER):
        if os.path.exists(f"{FOLDER}/{name}") and stat.S_ISSOCK(os.stat(f"{FOLDER}/{name}").st_mode):
            return socket.socket(fileno=os.dup(int(name)))
    raise RuntimeError("contained: no socket")


REQUEST = json.dumps({"op": "build", "language": "cpp", "name": "", "flags": []}).encode()


def sparse():
    """As large as a file may become here."""
    file = os.memfd_create("sparse")
    for size in (1 << 40, 1 << 32, 1 << 30):
        try:
            os.ftruncate(file, size)
            break
        except OSError:
            continue
    return file


def shrinking():
    """A file that another thread cuts and grows all the time."""
    file = os.memfd_create("shrinking")

    def cut():
        while True:
            os.ftruncate(file, 0)
            os.ftruncate(file, 4 << 20)

    threading.Thread(target=cut, daemon=True).start()
    return file


def builds():
    """Ask for each of them; how many were built."""
    channel, built = referee(), 0
    write_only, path_only = os.open("/job/file", os.O_CREAT | os.O_WRONLY), os.open("/job/file", os.O_PATH)
    for file in (write_only, path_only, os.pipe()[0], os.open("/job", os.O_RDONLY), shrinking(), sparse()):
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
        channel.sendmsg([struct.pack("!I", len(REQUEST)) + REQUEST], rights)
        size = struct.unpack("!I", channel.recv(4, socket.MSG_WAITALL))[0]
        built += json.loads(channel.recv(size, socket.MSG_WAITALL))["ok"]
    return built


if builds() == 0:
    raise RuntimeError("contained: nothing was built")


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
