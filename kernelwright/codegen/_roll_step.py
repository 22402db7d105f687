"""The step of a loop that was found in a captured graph: what all copies of its nodes have in common, and its inputs.

Worker side, on plain data (see :class:`Nodes`).
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Node = dict[str, Any]

_POINTWISE = frozenset(
    ("add", "sub", "mul", "div", "neg", "exp", "sigmoid", "silu", "tanh", "relu", "softplus", "reciprocal", "rsqrt")
)
CONTIGUOUS = {"memory_format": {"symbol": "memory_format", "value": "contiguous_format"}}


class Span(NamedTuple):
    """``steps`` steps of ``period`` nodes each, from node ``start`` on."""

    start: int
    period: int
    steps: int


class NoLoop(Exception):
    """These nodes are no steps of a loop."""


class StepWriter:
    """Finds out what the steps of a span read, and writes one of them as a graph of its own.

    Raises:
        NoLoop: the nodes are no steps of a loop.
    """

    def __init__(self, graph: dict[str, Any], span: Span) -> None:
        self.graph_before, self.span = graph, span
        self.nodes: list[Node] = graph["nodes"]
        start, period, count = span
        inside = self.nodes[start : start + period * count]
        self.places = {node["name"]: divmod(n, period) for n, node in enumerate(inside)}
        self.entries = {item["name"]: item for item in graph["inputs"]}
        self.known = {node["name"]: node for node in self.nodes}
        self.inputs: dict[str, dict[str, Any]] = {}  # of the step, by what they are
        self.arguments: list[Any] = []
        self.before: list[Node] = []  # nodes that make arguments
        self.taken: list[dict[str, int]] = []
        self.carried: list[tuple[int, tuple[int, int]]] = []  # input; place and index of the next state
        self.slices: dict[int, Any] = {}  # nodes of the step that only take a slice: place, the slice
        self.sunk: dict[str, Node] = {}  # nodes before the loop that the step computes slice by slice
        self.same: dict[int, str] = {}  # nodes of the step that compute the same in each: place, name
        self.stacked: list[tuple[int, int]] = []  # place in the step, and index, of results of all steps

    # ------------------------------------------------------------------------------------------ the step

    def _copies(self, place: int) -> list[Node]:
        start, period, count = self.span
        return [self.nodes[start + step * period + place] for step in range(count)]

    def _step_node(self, place: int) -> Node | None:
        copies = self._copies(place)
        node = copies[0]
        if node["op"] == "select.int":
            taken = self._selected(copies)
            if taken is not None:
                self.slices[place] = taken
                return None
        if node["op"] == "slice.Tensor" and all(c["args"][2] != node["args"][2] for c in copies[1:]):
            piece = self._piece(copies)
            return {**node, "op": "unsqueeze.default", "args": [piece, node["args"][1]], "kwargs": {}}
        given = [self._known([c["args"], c["kwargs"]]) for c in copies]
        if all(one == given[0] for one in given) and not self._inside(given[0]):
            args, kwargs = given[0]
            self.before.append({**node, "args": args, "kwargs": kwargs})  # the same in each step: computed once
            self.same[place] = node["name"]
            return None
        args = [self._argument([c["args"][n] for c in copies]) for n in range(len(node["args"]))]
        kwargs = {key: self._argument([c["kwargs"][key] for c in copies]) for key in node["kwargs"]}
        return {**node, "args": args, "kwargs": kwargs}

    def _selected(self, copies: Sequence[Node]) -> Any:
        """The value of a slice whose position moves on with the steps; None if it does not move."""
        places = [c["args"][2] for c in copies]
        if len(set(places)) == 1:
            return None
        source, dim = self._known(copies[0]["args"][:2])
        if any(self._known(c["args"][:2]) != [source, dim] for c in copies) or self._inside(source):
            raise NoLoop
        return self._slice(source, dim, places)

    def _piece(self, copies: Sequence[Node]) -> Any:
        """The value of a slice of length one, ``x[:, t : t + 1]``, without that dim."""
        source, dim = self._known(copies[0]["args"][:2])
        if any(self._known(c["args"][:2]) != [source, dim] or c["args"][4] != 1 for c in copies):
            raise NoLoop
        if self._inside(source) or copies[0]["outputs"][0]["shape"][dim] != 1:
            raise NoLoop
        return self._slice(source, dim, [c["args"][2] for c in copies])

    def _known(self, value: Any) -> Any:
        """An argument, in which results that are the same in each step have one name."""
        if isinstance(value, list):
            return [self._known(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "ref" not in value:
            return {key: self._known(item) for key, item in value.items()}
        home = self.places.get(value["ref"])
        same = self.same.get(home[1]) if home else None
        return {**value, "ref": same} if same else value

    def _inside(self, value: Any) -> bool:
        """Whether an argument needs what a step computes."""
        if isinstance(value, list):
            return any(self._inside(v) for v in value)
        if not isinstance(value, dict):
            return False
        if "ref" not in value:
            return any(self._inside(item) for item in value.values())
        home = self.places.get(value["ref"])
        return home is not None and home[1] not in self.same

    def _slice(self, source: Any, dim: int, places: Sequence[int]) -> Any:
        """The slice of a tensor that a step reads."""
        if any(type(p) is not int for p in places):
            raise NoLoop
        shape = self._entry(source)["shape"]
        places = [p % shape[dim] for p in places]
        start, stride = places[0], places[1] - places[0]
        if stride == 0 or any(p != start + stride * n for n, p in enumerate(places)):
            raise NoLoop
        return self._sunk(source, dim % len(shape), (start, stride))

    def _sunk(self, source: Any, dim: int, walk: tuple[int, int]) -> Any:
        """One slice of a value. What computes the value element by element moves into the step, slice by slice."""
        node = self._outside(source["ref"]) or {"op": ""}
        entry, short = self._entry(source), node["op"].split(".")[0]
        shape = [size for d, size in enumerate(entry["shape"]) if d != dim]
        if short in _POINTWISE:
            args = [self._sliced(a, dim - len(entry["shape"]), walk) for a in node["args"]]
            return self._made(node, args, {**entry, "shape": shape})
        if short == "unsqueeze":
            at = node["args"][1] % len(entry["shape"])
            inner = self._sunk(node["args"][0], dim - (at < dim), walk)
            return self._made(node, [inner, at - (at > dim)], {**entry, "shape": shape})
        front = self._front(source, dim)
        key = f"{json.dumps(front)} from {walk}"
        made = self._input(key, front, {**entry, "shape": shape}, suffix="_now")
        if not any(one["input"] == made["place"] for one in self.taken):
            self.taken.append({"input": made["place"], "start": walk[0], "stride": walk[1]})
        return {"ref": made["name"]}

    def _sliced(self, argument: Any, dim: int, walk: tuple[int, int]) -> Any:
        """A slice of a pointwise operand along ``dim``, counted from the last; all of it if it is broadcast there."""
        if not isinstance(argument, dict) or "ref" not in argument:
            return argument
        entry = self._entry(argument)
        if len(entry["shape"]) + dim < 0:
            return {"ref": self._input(json.dumps(argument), argument, entry)["name"]}
        if entry["shape"][dim] != 1:
            return self._sunk(argument, len(entry["shape"]) + dim, walk)
        whole = {"ref": self._input(json.dumps(argument), argument, entry)["name"]}
        shape = [size for d, size in enumerate(entry["shape"]) if d != len(entry["shape"]) + dim]
        squeeze = {"name": f"{argument['ref']}_squeeze", "op": "squeeze.dim", "kwargs": {}}
        return self._made(squeeze, [whole, len(entry["shape"]) + dim], {**entry, "shape": shape})

    def _made(self, node: Mapping[str, Any], args: list[Any], entry: Mapping[str, Any]) -> Any:
        """A node of the step that stands for one before the loop."""
        written = json.dumps([node["op"], args, node["kwargs"]])
        if written not in self.sunk:
            name = f"{node['name']}_now_{len(self.sunk)}"
            result = {key: entry[key] for key in ("shape", "dtype")} | {"contiguous": False}
            self.sunk[written] = {**node, "name": name, "args": args, "outputs": [result]}
        return {"ref": self.sunk[written]["name"]}

    def _front(self, source: Any, dim: int) -> Any:
        """A tensor whose slices along ``dim`` are adjacent: its first dim."""
        entry = self._entry(source)
        shape = entry["shape"]
        if dim == 0:
            return source
        order = [dim, *(d for d in range(len(shape)) if d != dim)]
        name = f"front_{source['ref']}_{source.get('index', 0)}_{dim}"
        if not any(node["name"] == name for node in self.before):
            moved = {"shape": [shape[d] for d in order], "dtype": entry["dtype"], "contiguous": False}
            self.before += [
                {"name": f"{name}_view", "op": "permute.default", "args": [source, order], "kwargs": {},
                 "outputs": [moved]},
                {"name": name, "op": "clone.default", "args": [{"ref": f"{name}_view"}],
                 "kwargs": CONTIGUOUS,
                 "outputs": [{**moved, "contiguous": True}]},
            ]  # fmt: skip
        return {"ref": name}

    def _entry(self, ref: Any) -> dict[str, Any]:
        """Shape and dtype of a value."""
        if ref["ref"] in self.entries:
            return dict(self.entries[ref["ref"]])
        node = self.known.get(ref["ref"]) or next((n for n in self.before if n["name"] == ref["ref"]), None)
        if node is None:
            raise NoLoop
        return dict(node["outputs"][ref.get("index", 0)])

    def _outside(self, name: str) -> Node | None:
        """A node before or behind the steps."""
        return None if name in self.places else self.known.get(name)

    def _input(self, key: str, argument: Any, entry: Mapping[str, Any], suffix: str = "") -> dict[str, Any]:
        """An input of the step: made once for each ``key``."""
        if key not in self.inputs:
            name = re.sub(r"\W", "_", re.sub(r"^[pb]_", "", argument["ref"]))
            if argument["ref"] not in self.entries:
                name = re.sub(r"(_\d+)+$", "", name)  # the number depends on the length of loops before
            name += suffix
            taken = {made["name"] for made in self.inputs.values()} | {*self.places}
            while name in taken or keyword.iskeyword(name):
                name += "_"
            kept = {k: entry[k] for k in ("shape", "dtype", "contiguous")}
            self.inputs[key] = {"name": name, "place": len(self.arguments), "entry": kept}
            self.arguments.append(argument)
        return self.inputs[key]

    def _argument(self, values: Sequence[Any]) -> Any:
        """One argument of all copies of a node, as an argument in the step."""
        first = values[0]
        if isinstance(first, list):
            if any(len(v) != len(first) for v in values):
                raise NoLoop
            return [self._argument([v[n] for v in values]) for n in range(len(first))]
        if isinstance(first, dict) and "ref" in first:
            return self._reference(values)
        if any(v != first or type(v) is not type(first) for v in values):
            raise NoLoop
        return first

    def _reference(self, refs: Sequence[Any]) -> Any:
        refs = self._known(list(refs))
        first = refs[0]
        homes = [self.places.get(ref["ref"]) if self._inside(ref) else None for ref in refs]
        index = [ref.get("index", 0) for ref in refs]
        if all(home is None for home in homes):
            if all(ref == first for ref in refs):
                return {"ref": self._input(json.dumps(first), first, self._entry(first))["name"]}
            return self._unbound(refs, index)
        last = homes[-1]
        if last is None or len(set(index[1:])) != 1:
            raise NoLoop
        place = last[1]
        if homes == [(step, place) for step in range(len(refs))] and index[0] == index[-1]:
            return self.slices.get(place) or {**first}
        if homes[0] is None and homes[1:] == [(step, place) for step in range(len(refs) - 1)]:
            return self._state(first, place, index[-1])
        raise NoLoop

    def _state(self, first: Any, place: int, index: int) -> Any:
        """What the step before has computed; in the first step, a value from before the loop."""
        key = f"state {place} {index} {json.dumps(first)}"
        entry = self._copies(place)[0]["outputs"][index]
        begun = self._entry(first)
        if begun["shape"] != entry["shape"] or begun["dtype"] != entry["dtype"]:
            raise NoLoop
        new = key not in self.inputs
        made = self._input(key, first, {**entry, "contiguous": True})
        if new:
            self.carried.append((made["place"], (place, index)))
        return {"ref": made["name"]}

    def _value(self, place: int, index: int) -> Any:
        """How the step names a result of one of its nodes."""
        if place in self.slices:
            return self.slices[place]
        if place in self.same:
            raise NoLoop
        name = self._copies(place)[0]["name"]
        return {"ref": name, "index": index} if index else {"ref": name}

    def _unbound(self, refs: Sequence[Any], index: Sequence[int]) -> Any:
        """Results of one ``unbind``, one for each step; or of one ``split`` into parts of length one."""
        maker = self._outside(refs[0]["ref"])
        if maker is None or any(ref["ref"] != maker["name"] for ref in refs):
            raise NoLoop
        if maker["op"] == "unbind.int":
            source, dim = maker["args"][0], (maker["args"] + [0])[1]
            return self._slice(source, dim, index)
        if maker["op"] != "split.Tensor" or maker["args"][1] != 1:
            raise NoLoop
        source, _, dim = maker["args"]
        unsqueeze = {"name": maker["name"], "op": "unsqueeze.default", "kwargs": {}}
        return self._made(unsqueeze, [self._slice(source, dim, index), dim], maker["outputs"][0])
