"""Shares of a call's time: own kernels, libraries, Python, the rest."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

OWN_AT_LEAST: Final = 0.05  # of all samples; with less, own kernels are decoration
# Of own and foreign samples together. torch.empty alone takes 3% beside a softmax of 64 x 512, and 13% beside a ReLU of
# 32,768 elements, a kernel of a few microseconds.
FOREIGN_AT_MOST: Final = 0.10


class Share(NamedTuple):
    """Fractions of a contestant's samples. Samples in which it waited for its next call are left out.

    Attributes:
        own: in build products that the referee handed out.
        library: in torch's operators and everything else that is installed, numpy and other BLAS included.
        python: in the interpreter, its standard library's modules, libffi, and torch's Python bindings and allocator.
        other: anywhere else: generated code (oneDNN's, for one), files of the contestant's own making.
        samples: how many samples these are fractions of.
    """

    own: float
    library: float
    python: float
    other: float
    samples: int


def label(share: Share) -> Literal["kernel", "hybrid", "library"]:
    """The label of a candidate, by where it spends its time.

    ``library``: own kernels take less than :data:`OWN_AT_LEAST` of the whole. ``kernel``: foreign code takes at most
    :data:`FOREIGN_AT_MOST` of own and foreign together. ``hybrid``: the rest. Foreign are libraries and code of unknown
    owner, since libraries generate code at run time and a contestant may copy theirs.
    """
    foreign = share.library + share.other
    if share.own < OWN_AT_LEAST:
        return "library"
    return "kernel" if foreign <= FOREIGN_AT_MOST * (share.own + foreign) else "hybrid"
