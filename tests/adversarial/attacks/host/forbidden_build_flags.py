"""Asks the referee itself for a build with flags that the worker's own check would refuse.

row: compiler plug-ins; linker response files; LD_PRELOAD: by a message of its own
problem: problems/host_twice.py
backend: cpp
screen: refuses
host: yes
"""

import array
import json
import os
import socket
import stat
import struct

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


SOURCE = b'extern "C" void nothing() {}'
FLAGS = (
    ["-fplugin=/job/plugin.so"],
    ["-wrapper", "/bin/sh,-c,id"],
    ["@/etc/passwd"],
    ["-specs=/job/specs"],
    ["-o/in/product.so"],
    ["-Wl,--version-script=/etc/shadow"],
    ["-Xlinker", "-rpath=/job"],
    ["-B/job"],
    ["-include", "/proc/self/environ"],
    ["-DA=\ud800"],
    ["-DA=$(id > /tmp/id)`id`"],
    [["-O2"]],
    "-O2",
    {"-O2": 1},
    None,
)


def builds():
    """Ask for each of them; the flags that were taken."""
    channel, taken = referee(), []
    for flags in FLAGS:
        file = os.memfd_create("source")
        os.write(file, SOURCE)
        request = json.dumps({"op": "build", "language": "cpp", "name": "", "flags": flags}).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
        channel.sendmsg([struct.pack("!I", len(request)) + request], rights)
        size = struct.unpack("!I", channel.recv(4, socket.MSG_WAITALL))[0]
        if json.loads(channel.recv(size, socket.MSG_WAITALL))["ok"]:
            taken.append(flags)
    return taken


taken = [flags for flags in builds() if flags != ["-DA=$(id > /tmp/id)`id`"]]
if not taken:
    raise RuntimeError("contained: no such flag was taken")
print(taken, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
