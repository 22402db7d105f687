"""Writes to what other candidates will use: the package, Python's libraries, caches of builds and of compilers.

row: poisoned caches and warm workers; edits to the reference or problem file
problem: problems/host_twice.py
backend: cpp
screen: passes
host: yes
"""

import os
import sys

import torch
import torch.nn as nn

from kernelwright.inline import cpp

lib = cpp(r"""
#include <cstdint>
extern "C" void twice(const float* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] + x[i];
}
""")


HOME = os.path.expanduser("~")
FOLDERS = [
    *sys.path,
    sys.prefix,
    sys.exec_prefix,
    os.path.dirname(torch.__file__),
    os.path.dirname(os.__file__),
    "/cache",
]
FOLDERS += [
    f"{HOME}/.cache",
    f"{HOME}/.cache/kernelwright",
    "/root/.cache/kernelwright",
    "/usr/lib",
    "/usr/include",
    "/etc",
]
OWN = ("/job", "/tmp", "/dev/shm")


def poisoned():
    """Folders that took a file, and files of others that could be opened for writing."""
    found = []
    for folder in {path for path in FOLDERS if path and not path.startswith(OWN)}:
        try:
            with open(f"{folder}/sitecustomize.py", "x") as file:
                file.write("print('poisoned')")
            found.append(folder)
        except OSError:
            continue
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if path and os.path.exists(path):
            try:
                os.close(os.open(path, os.O_WRONLY))
                found.append(path)
            except OSError:
                continue
    return found


if not (found := poisoned()):
    raise RuntimeError("contained: nothing that others use can be written")
print(found, flush=True)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        lib.twice(x, y, x.numel())
        return y
