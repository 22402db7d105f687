"""A worker's side of the search for data races: calls of a candidate with watched products, and the observed races.

The candidate lives in the same process, so the results are claims. They can only cost the candidate its place.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelwright.inline import recording

if TYPE_CHECKING:
    import torch

_MOST_RACES = 8


class Product(NamedTuple):
    """A product that this process was given: its path, and whether it is an extension of Python."""

    path: str
    extension: bool


class Quiet(NamedTuple):
    """Memory that this process cannot write."""

    start: int
    bytes: int


class _Race(ctypes.Structure):
    _fields_ = [
        *(("address", ctypes.c_uint64), ("size", ctypes.c_uint32)),
        *(("pc_then", ctypes.c_uint32), ("pc_now", ctypes.c_uint32)),
        *(("thread_then", ctypes.c_int32), ("thread_now", ctypes.c_int32)),
        *(("write_then", ctypes.c_uint8), ("write_now", ctypes.c_uint8)),
        *(("perhaps", ctypes.c_uint8), ("own", ctypes.c_uint8)),
    ]


class _Watched:
    """One product that is linked to the runtime. ``number`` counts all products that this process was given."""

    def __init__(self, number: int, product: Product, library: ctypes.CDLL) -> None:
        self.number, self.extension, self._library = number, product.extension, library
        library.kw_races_begin.argtypes = [
            *(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_double),
        ]
        library.kw_races_notes.restype = library.kw_races_regions.restype = ctypes.c_uint64

    def begin(self, threads: int, last_first: bool, quiet: Quiet, shadow_bytes: int, seconds: float) -> None:
        self._library.kw_races_begin(threads, int(last_first), quiet.start, quiet.bytes, shadow_bytes, seconds)

    def take(self) -> list[_Race]:
        found = (_Race * _MOST_RACES)()
        return list(found[: self._library.kw_races_take(found, _MOST_RACES)])

    @property
    def notes(self) -> int:
        return int(self._library.kw_races_notes())

    @property
    def regions(self) -> int:
        return int(self._library.kw_races_regions())


class RaceWatch:
    """Calls with watched products.

    Args:
        spans: memory that has a name in all calls: inputs and weights.
    """

    def __init__(self, products: Sequence[Product], spans: Sequence[recording.ArgumentSpan], quiet: Quiet) -> None:
        libraries = ((number, product, ctypes.CDLL(product.path)) for number, product in enumerate(products))
        self._watched = [_Watched(*made) for made in libraries if hasattr(made[2], "kw_races_begin")]
        self._spans = list(spans)
        self._quiet = quiet
        self._arguments: list[recording.ArgumentSpan] = []
        self._found: list[tuple[_Watched, _Race, recording.ArgumentSpan | None]] = []

    def look(
        self,
        call: Callable[[], Sequence[torch.Tensor]],
        threads: int,
        last_first: bool,
        shadow_bytes: int,
        seconds: float,
    ) -> dict[str, Any]:
        """Do one call with teams of ``threads`` threads; the observed races, in the form for the referee."""
        self._found = []
        for watched in self._watched:
            watched.begin(threads, last_first, self._quiet, shadow_bytes, seconds)
        with self._calls():
            outputs = call()
        named = [_span(f"output {i}", output) for i, output in enumerate(outputs)]
        notes = regions = 0
        for watched in self._watched:
            notes |= watched.notes
            regions += watched.regions
        races = [_described(watched, race, span or _holder(named, race.address)) for watched, race, span in self._found]
        return {"races": races[:_MOST_RACES], "notes": notes, "regions": regions}

    @contextlib.contextmanager
    def _calls(self) -> Iterator[None]:
        with recording.tell_of_calls(self._begin_call):
            yield
        self._begin_call([])

    def _begin_call(self, arguments: list[recording.ArgumentSpan]) -> None:
        """Attribute the races found so far to the call before this one."""
        for watched in self._watched:
            for race in watched.take():
                self._found.append((watched, race, _holder([*self._arguments, *self._spans], race.address)))
        self._arguments = arguments


def tensor_spans(inputs: Sequence[Any], weights: dict[str, torch.Tensor]) -> list[recording.ArgumentSpan]:
    """The memory of a call's inputs and of a module's tensors."""
    import torch

    named = {f"input {i}": value for i, value in enumerate(inputs) if isinstance(value, torch.Tensor)} | weights
    return [_span(name, tensor) for name, tensor in named.items()]


def _span(name: str, tensor: torch.Tensor) -> recording.ArgumentSpan:
    storage = tensor.untyped_storage()
    dtype = str(tensor.dtype).removeprefix("torch.")
    return recording.ArgumentSpan(name, storage.data_ptr(), storage.nbytes(), dtype, tensor.element_size())


def _holder(spans: Sequence[recording.ArgumentSpan], address: int) -> recording.ArgumentSpan | None:
    return next((span for span in spans if span.start <= address < span.start + span.bytes), None)


def _described(watched: _Watched, race: _Race, span: recording.ArgumentSpan | None) -> dict[str, Any]:
    # In an extension, memory that torch hands out while threads run may belong to one thread, and later to another.
    of_torch = watched.extension and span is None and not race.own
    return {
        "product": watched.number,
        "places": [race.pc_then, race.pc_now],
        "threads": [race.thread_then, race.thread_now],
        "writes": [bool(race.write_then), bool(race.write_now)],
        "perhaps": bool(race.perhaps) or of_torch,
        "argument": "" if span is None else span.name[:80],
        "dtype": "" if span is None else span.dtype,
        "element": 0 if span is None else (race.address - span.start) // max(span.item_bytes, 1),
    }
