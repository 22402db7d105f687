"""Finds loops in a captured graph: steps that ``torch.export`` has written out one after another become one node.

Worker side, on plain data (see :class:`Nodes`). A loop over time has as many copies of its step as the input has
steps, so the graphs of two shapes differ in length. Rolled up, they differ in a number. A step may read what the step
before it has computed (a state), what was computed before the loop, and slice ``start + stride * step`` of a tensor.
Results of all steps may be stacked; the last states may be used. Any other pattern is left as it is.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Node = dict[str, Any]

_LEAST_STEPS = 3
_LONGEST_STEP = 400  # nodes
_POINTWISE = frozenset(
    ("add", "sub", "mul", "div", "neg", "exp", "sigmoid", "silu", "tanh", "relu", "softplus", "reciprocal", "rsqrt")
)
_CONTIGUOUS = {"memory_format": {"symbol": "memory_format", "value": "contiguous_format"}}
_MANY_STEPS = 16  # from which on a loop is rolled up even if its length is the same for all shapes


class _Span(NamedTuple):
    """``steps`` steps of ``period`` nodes each, from node ``start`` on."""

    start: int
    period: int
    steps: int


class _NoLoop(Exception):
    """These nodes are no steps of a loop."""


def rolled(graphs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The graphs of all shapes, each with its loop as a node; the graphs themselves if not all have the same loop."""
    found = [_rolled(graph, _LEAST_STEPS) for graph in graphs]
    loops = [_loop_of(graph) for graph in found]
    known = next((len(loop["nodes"]) for loop in loops if loop), None)
    short = all(loop is None or loop["steps"] < _MANY_STEPS for loop in loops)
    if known is None or (short and len({len(graph["nodes"]) for graph in graphs}) == 1):
        return list(graphs)
    # A short input has as few as two steps, in which a loop is only seen by one who knows it.
    found = [one if loop else _rolled(graph, 2) for one, loop, graph in zip(found, loops, graphs, strict=True)]
    loops = [_loop_of(graph) for graph in found]
    return found if all(loop and len(loop["nodes"]) == known for loop in loops) else list(graphs)


def _loop_of(graph: dict[str, Any]) -> dict[str, Any] | None:
    found: dict[str, Any] | None = next((node["repeat"] for node in graph["nodes"] if "repeat" in node), None)
    return found


def _rolled(graph: dict[str, Any], least: int) -> dict[str, Any]:
    """A graph with its longest loop as one node ``repeat``, or the graph itself.

    The node has the key ``repeat``: ``steps``, and the step as a graph of its own (``inputs``, ``nodes``, ``outputs``).
    Its ``args`` are the values of these inputs, in order. An entry of ``taken`` is the position of an input with
    ``start`` and ``stride``: the step reads that slice of the argument's first dim. An entry of ``carried`` stands for
    a state. It has the state's position among the inputs, and the position of the next state among the outputs. The
    first ``stacked`` outputs are collected over the steps. The node's results are these collections, then the last
    states.
    """
    nodes = graph["nodes"]
    for span in _spans([_signature(node) for node in nodes], least):
        try:
            return _Roller(graph, span).graph()
        except _NoLoop:
            continue
    return graph


def _signature(node: Node) -> str:
    """What the copies of one node have in common."""
    return json.dumps([node["op"], _blank(node["args"]), _blank(node["kwargs"]), node["outputs"]])


def _blank(value: Any) -> Any:
    if isinstance(value, dict):
        return "ref" if "ref" in value else {key: _blank(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_blank(item) for item in value]
    return 0 if type(value) is int else value


def _spans(signatures: Sequence[str], least: int) -> Iterator[_Span]:
    """Repetitions of a row of nodes, the longest first, with each node of a step as its beginning."""
    found: list[tuple[int, int, int]] = []
    total = len(signatures)
    for period in range(1, min(_LONGEST_STEP, total // least) + 1):
        begin = 0
        for place in range(total - period + 1):
            same = place + period < total and signatures[place] == signatures[place + period]
            if not same:
                if place - begin >= (least - 1) * period:
                    found.append((place - begin + period, period, begin))
                begin = place + 1
    found.sort(key=lambda one: (-one[0], one[1]))
    for length, period, begin in found[:4]:
        whole = length % period  # so that the last step ends where the row of copies does
        for shift in [whole, *(n for n in range(period) if n != whole)]:
            count = (length - shift) // period
            for first in (0, 1):  # the first copy may only look like a step
                if count - first >= least:
                    yield _Span(begin + shift + first * period, period, count - first)


class _Roller:
    """Writes one span of nodes as a loop.

    Raises:
        _NoLoop: the nodes are no steps of a loop.
    """

    def __init__(self, graph: dict[str, Any], span: _Span) -> None:
        self.graph_before, self.span = graph, span
        self.nodes: list[Node] = graph["nodes"]
        start, period, count = span
        self.places = {
            node["name"]: divmod(n - start, period)
            for n, node in enumerate(self.nodes)
            if start <= n < start + period * count
        }
        self.entries = {item["name"]: item for item in graph["inputs"]}
        self.outside = {node["name"]: node for node in self.nodes if node["name"] not in self.places}
        self.inputs: dict[str, dict[str, Any]] = {}  # of the step, by what they are
        self.arguments: list[Any] = []
        self.before: list[Node] = []  # nodes that make arguments
        self.taken: list[dict[str, int]] = []
        self.carried: list[tuple[int, Any]] = []
        self.slices: dict[int, Any] = {}  # nodes of the step that only take a slice: place, the slice
        self.sunk: dict[str, Node] = {}  # nodes before the loop that the step computes slice by slice
        self.same: dict[int, str] = {}  # nodes of the step that compute the same in each: place, name
        self.stacked: list[tuple[int, int]] = []  # place in the step, and index, of results of all steps

    def graph(self) -> dict[str, Any]:
        """The graph with the loop."""
        start, period, count = self.span
        body = [self._step_node(n) for n in range(period)]
        after = self._after(self.nodes[start + period * count :])
        ends = [self._end(output) for output in self.graph_before["outputs"]]
        writes = [
            {**w, **self._end({k: w[k] for k in ("ref", "index") if k in w})} for w in self.graph_before["writes"]
        ]
        loop = self._loop([*self.sunk.values(), *(node for node in body if node)])
        names = {n["name"]: f"{n['op'].split('.')[0]}_after_{number}" for number, n in enumerate(after)}
        after, ends, writes = (_settled(part, names, len(self.stacked)) for part in (after, ends, writes))
        nodes = [*self.nodes[:start], *self.before, loop, *after]
        used = json.dumps([[n["args"], n["kwargs"]] for n in nodes])
        nodes = [n for n in nodes if n["op"] != "unbind.int" or f'"ref": "{n["name"]}"' in used]
        return {
            **self.graph_before,
            "nodes": nodes,
            "outputs": ends,
            "writes": writes,
        }

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
            raise _NoLoop
        return self._slice(source, dim, places)

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
        start, stride = places[0], places[1] - places[0]
        if any(type(p) is not int for p in places) or stride == 0:
            raise _NoLoop
        if any(p != start + stride * n for n, p in enumerate(places)) or min(places[0], places[-1]) < 0:
            raise _NoLoop
        return self._sunk(source, dim % len(self._entry(source)["shape"]), (start, stride))

    def _sunk(self, source: Any, dim: int, walk: tuple[int, int]) -> Any:
        """One slice of a value. What computes the value element by element moves into the step, slice by slice."""
        node = self.outside.get(source["ref"], {"op": ""})
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
                 "kwargs": _CONTIGUOUS,
                 "outputs": [{**moved, "contiguous": True}]},
            ]  # fmt: skip
        return {"ref": name}

    def _entry(self, ref: Any) -> dict[str, Any]:
        """Shape and dtype of a value."""
        if ref["ref"] in self.entries:
            return dict(self.entries[ref["ref"]])
        for node in (self.outside.get(ref["ref"]), *self.before, *self.nodes):
            if node is not None and node["name"] == ref["ref"]:
                return dict(node["outputs"][ref.get("index", 0)])
        raise _NoLoop

    def _input(self, key: str, argument: Any, entry: Mapping[str, Any], suffix: str = "") -> dict[str, Any]:
        """An input of the step: made once for each ``key``."""
        if key not in self.inputs:
            name = re.sub(r"\W", "_", re.sub(r"^[pb]_", "", argument["ref"])) + suffix
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
                raise _NoLoop
            return [self._argument([v[n] for v in values]) for n in range(len(first))]
        if isinstance(first, dict) and "ref" in first:
            return self._reference(values)
        if any(v != first or type(v) is not type(first) for v in values):
            raise _NoLoop
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
            raise _NoLoop
        place = last[1]
        if homes == [(step, place) for step in range(len(refs))] and index[0] == index[-1]:
            return self.slices.get(place) or {**first}
        if homes[0] is None and homes[1:] == [(step, place) for step in range(len(refs) - 1)]:
            return self._state(first, place, index[-1])
        raise _NoLoop

    def _state(self, first: Any, place: int, index: int) -> Any:
        """What the step before has computed; in the first step, a value from before the loop."""
        key = f"state {place} {index} {json.dumps(first)}"
        entry = self._copies(place)[0]["outputs"][index]
        begun = self._entry(first)
        if begun["shape"] != entry["shape"] or begun["dtype"] != entry["dtype"]:
            raise _NoLoop
        new = key not in self.inputs
        made = self._input(key, first, {**entry, "contiguous": True})
        if new:
            self.carried.append((made["place"], self._value(place, index)))
        return {"ref": made["name"]}

    def _value(self, place: int, index: int) -> Any:
        """How the step names a result of one of its nodes."""
        if place in self.slices:
            return self.slices[place]
        name = self._copies(place)[0]["name"]
        return {"ref": name, "index": index} if index else {"ref": name}

    def _unbound(self, refs: Sequence[Any], index: Sequence[int]) -> Any:
        """Results of one ``unbind``, one for each step."""
        maker = self.outside.get(refs[0]["ref"])
        if maker is None or any(ref["ref"] != maker["name"] for ref in refs) or maker["op"] != "unbind.int":
            raise _NoLoop
        source, dim = maker["args"][0], (maker["args"] + [0])[1]
        return self._slice(source, dim, index)

    # ------------------------------------------------------------------------------------------ what follows

    def _after(self, nodes: Sequence[Node]) -> list[Node]:
        found: list[Node] = []
        for node in nodes:
            if node["op"] == "stack.default" and isinstance(node["args"][0], list):
                found += self._stack(node)
                continue
            args = [self._end(a) for a in node["args"]]
            kwargs = {key: self._end(a) for key, a in node["kwargs"].items()}
            found.append({**node, "args": args, "kwargs": kwargs})
        return found

    def _end(self, value: Any) -> Any:
        """An argument behind the loop: of the loop's results only the last states can be used."""
        if isinstance(value, list):
            return [self._end(v) for v in value]
        if not isinstance(value, dict) or value.get("ref") not in self.places:
            return value
        step, place = self.places[value["ref"]]
        wanted = self._value(place, value.get("index", 0))
        for number, (_, following) in enumerate(self.carried):
            if following == wanted and step == self.span.steps - 1:
                return {"ref": "repeat", "last": number}
        raise _NoLoop

    def _stack(self, node: Node) -> list[Node]:
        """A stack of the results of all steps, and of others before and after them."""
        refs, dim = node["args"][0], (node["args"] + [0])[1]
        homes = [self.places.get(ref["ref"]) for ref in refs]
        inside = [n for n, home in enumerate(homes) if home is not None]
        if not inside:
            return [node]
        first, count = inside[0], self.span.steps
        begun = homes[first]
        assert begun is not None
        index = refs[first].get("index", 0)
        if homes[first : first + count] != [(step, begun[1]) for step in range(count)] or len(inside) != count:
            raise _NoLoop
        if any(ref.get("index", 0) != index for ref in refs[first : first + count]):
            raise _NoLoop
        result = node["outputs"][0]
        place = dim % len(result["shape"])
        order = [d + 1 if d < place else 0 if d == place else d for d in range(len(result["shape"]))]
        parts = [(refs[:first], "before"), (None, "steps"), (refs[first + count :], "behind")]
        made: list[Node] = []
        names = []
        for others, word in parts:
            if others == []:
                continue
            length = count if others is None else len(others)
            entry = {**result, "shape": [*result["shape"][:place], length, *result["shape"][place + 1 :]]}
            name = f"{node['name']}_{word}"
            if others is None:
                entry["contiguous"] = place == 0
                given = {"ref": "repeat", "index": self._collected(begun[1], index)}
                made.append({"name": name, "op": "permute.default", "args": [given, order], "kwargs": {},
                             "outputs": [entry]})  # fmt: skip
            else:
                made.append({"name": name, "op": "stack.default", "args": [[self._end(o) for o in others], dim],
                             "kwargs": {}, "outputs": [entry]})  # fmt: skip
            names.append(name)
        joined = [{"ref": name} for name in names]
        if len(joined) == 1 and order == sorted(order):
            made[-1]["name"] = node["name"]
        elif len(joined) == 1:
            made.append({**node, "op": "clone.default", "args": joined,
                         "kwargs": _CONTIGUOUS})  # fmt: skip
        else:
            made.append({**node, "op": "cat.default", "args": [joined, dim]})
        return made

    def _collected(self, place: int, index: int) -> int:
        if (place, index) not in self.stacked:
            self.stacked.append((place, index))
        return self.stacked.index((place, index))

    # ------------------------------------------------------------------------------------------ the node

    def _loop(self, body: list[Node]) -> Node:
        count = self.span.steps
        named = {made["place"]: made for made in self.inputs.values()}
        inputs = [
            {"name": named[n]["name"], "kind": "input", "target": named[n]["name"], **named[n]["entry"],
             "contiguous": True}
            for n in range(len(self.arguments))
        ]  # fmt: skip
        outputs = [self._value(*one) for one in self.stacked]
        entries = [self._copies(place)[0]["outputs"][index] for place, index in self.stacked]
        results = [{**e, "shape": [count, *e["shape"]], "contiguous": True} for e in entries]
        states = []
        for place, following in self.carried:
            if following not in outputs:
                outputs.append(following)
            states.append({"input": place, "output": outputs.index(following)})
            results.append({**inputs[place], "contiguous": True})
        if not results:
            raise _NoLoop
        results = [{k: entry[k] for k in ("shape", "dtype", "contiguous")} for entry in results]
        return {
            "name": "repeat",
            "op": "repeat.steps",
            "args": self.arguments,
            "kwargs": {},
            "outputs": results,
            "repeat": {
                "steps": count,
                "inputs": inputs,
                "nodes": body,
                "outputs": outputs,
                "stacked": len(self.stacked),
                "taken": self.taken,
                "carried": states,
            },
        }


def _settled(value: Any, names: Mapping[str, str], stacked: int) -> Any:
    """A node or an argument with new names, and with the place of the last states among the results of the loop."""
    if isinstance(value, list):
        return [_settled(v, names, stacked) for v in value]
    if not isinstance(value, dict):
        return value
    found = {key: _settled(item, names, stacked) for key, item in value.items() if key != "last"}
    if "last" in value:
        found["index"] = stacked + value["last"]
    return {**found, **{key: names.get(found[key], found[key]) for key in ("ref", "name") if key in found}}
