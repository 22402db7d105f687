"""Writes the nodes of a captured graph's loop as one node, and what follows it in terms of the loop's results.

Worker side, on plain data (see :class:`Nodes`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kernelwright.codegen._roll_step import CONTIGUOUS, Node, NoLoop, Span, StepWriter


class LoopWriter(StepWriter):
    """Writes one span of nodes as a loop.

    Raises:
        NoLoop: the nodes are no steps of a loop.
    """

    def __init__(self, graph: dict[str, Any], span: Span) -> None:
        super().__init__(graph, span)
        self.name = f"loop_{sum('repeat' in node for node in self.nodes)}"
        while self.name in self.known or self.name in self.entries:
            self.name += "_"
        self.after: list[Node] = []

    def graph(self) -> dict[str, Any]:
        """The graph with the loop."""
        start, period, count = self.span
        body = [node for n in range(period) if (node := self._step_node(n))]
        if not body:
            raise NoLoop
        for node in self.nodes[start + period * count :]:
            self._follow(node)
        ends, writes = (self._end(self.graph_before[key]) for key in ("outputs", "writes"))
        loop = self._loop([*self.sunk.values(), *body])
        names = {
            n["name"]: f"{n['op'].split('.')[0]}_after_{self.name}_{number}" for number, n in enumerate(self.after)
        }
        after, ends, writes = (_settled(part, names, len(self.stacked)) for part in (self.after, ends, writes))
        nodes = [*self.nodes[:start], *self.before, loop, *after]
        used = json.dumps([ends, writes, [[n["args"], n["kwargs"]] for n in nodes]])
        nodes = [n for n in nodes if n["op"] not in ("unbind.int", "split.Tensor") or f'"ref": "{n["name"]}"' in used]
        return {**self.graph_before, "nodes": nodes, "outputs": ends, "writes": writes}

    # ------------------------------------------------------------------------------------------ what follows

    def _follow(self, node: Node) -> None:
        """Write a node behind the loop."""
        if node["op"] in ("stack.default", "cat.default") and self._joined(node):
            return
        args, kwargs = self._end(node["args"]), self._end(node["kwargs"])
        self.after.append({**node, "args": args, "kwargs": kwargs})

    def _end(self, value: Any) -> Any:
        """An argument behind the loop."""
        if isinstance(value, list):
            return [self._end(v) for v in value]
        if not isinstance(value, dict):
            return value
        if "ref" not in value:
            return {key: self._end(item) for key, item in value.items()}
        if value["ref"] not in self.places:
            return self._unbound_alone(value)
        step, place = self.places[value["ref"]]
        index = value.get("index", 0)
        if place in self.same:
            return {**value, "ref": self.same[place]}
        following = [one for _, one in self.carried]
        if step == self.span.steps - 1 and (place, index) in following and place not in self.slices:
            return {**value, "ref": self.name, "last": following.index((place, index))}
        return {**value, "ref": self._chosen(value, step, place, index), "index": 0}

    def _unbound_alone(self, value: Any) -> Any:
        """An argument from before the loop. How many results an ``unbind`` has depends on the length of the loop."""
        maker = self.known.get(value["ref"])
        if maker is None or maker["op"] != "unbind.int":
            return value
        (source, dim), index = (maker["args"] + [0])[:2], value.get("index", 0)
        name = f"{value['ref']}_{index}_alone"
        if not any(node["name"] == name for node in self.after):
            self._add(name, "select.int", [source, dim, index], maker["outputs"][index])
        return {**value, "ref": name, "index": 0}

    def _chosen(self, value: Any, step: int, place: int, index: int) -> str:
        """The name of the result of one step."""
        name = f"{value['ref']}_{index}_of_step"
        if not any(node["name"] == name for node in self.after):
            if place in self.slices:
                args = self._known(self.known[value["ref"]]["args"])
            else:
                args = [{"ref": self.name, "index": self._collected(place, index)}, 0, step]
            outputs = [self.known[value["ref"]]["outputs"][index]]
            self._add(name, "select.int", args, outputs[0])
        return name

    def _add(self, name: str, op: str, args: list[Any], entry: Mapping[str, Any], contiguous: bool = False) -> Any:
        """Write a node behind the loop."""
        result = {**{key: entry[key] for key in ("shape", "dtype")}, "contiguous": contiguous}
        self.after.append({"name": name, "op": op, "args": args, "kwargs": {}, "outputs": [result]})
        return {"ref": name}

    def _joined(self, node: Node) -> bool:
        """Write a ``stack`` or ``cat`` of the results of all steps, forwards or backwards, and of others around them.

        False if it is of nothing within the loop.

        Raises:
            NoLoop: it is of some steps only, or in another order.
        """
        refs, dim = node["args"][0], (node["args"] + [0])[1]
        homes = [(*self.places.get(ref["ref"], (-1, -1)), ref.get("index", 0)) for ref in refs]
        inside = [n for n, home in enumerate(homes) if home[0] >= 0]
        if not inside:
            return False
        first, run = self._run(homes, inside)
        result, stacks = node["outputs"][0], node["op"] == "stack.default"
        axis, count = dim % len(result["shape"]), self.span.steps
        length = count if stacks else count * self._entry(refs[first])["shape"][axis]
        shape = [length if d == axis else size for d, size in enumerate(result["shape"])]
        steps = self._all_steps(node, run, axis, {**result, "shape": shape})
        parts = []
        for others, word in ((refs[:first], "before"), (None, "steps"), (refs[first + count :], "behind")):
            if others is None:
                parts.append(steps)
            elif others and stacks:
                entry = {**result, "shape": [len(others) if d == axis else s for d, s in enumerate(shape)]}
                parts.append(self._add(f"{node['name']}_{word}", node["op"], [self._end(others), dim], entry))
            else:
                parts += self._end(others)
        if len(parts) > 1:
            self.after.append({**node, "op": "cat.default", "args": [parts, dim], "kwargs": {}})
        elif self.after[-1]["outputs"][0]["contiguous"]:
            self.after[-1]["name"] = node["name"]
        else:
            self.after.append({**node, "op": "clone.default", "args": parts, "kwargs": CONTIGUOUS})
        return True

    def _run(self, homes: Sequence[tuple[int, int, int]], inside: Sequence[int]) -> tuple[int, list[tuple[int, ...]]]:
        """Where in a list the results of all steps begin, and these results."""
        count = self.span.steps
        for first in inside:
            run = [*homes[first : first + count]]
            forwards = [(step, *run[0][1:]) for step in range(count)]
            if run in (forwards, forwards[::-1]):
                return first, list(run)
        raise NoLoop

    def _all_steps(self, node: Node, run: Sequence[tuple[int, ...]], axis: int, entry: Mapping[str, Any]) -> Any:
        """The results of all steps side by side."""
        count, (step, place, index) = self.span.steps, run[0]
        name, rank = node["name"], len(entry["shape"])
        stacks = node["op"] == "stack.default"
        if place in self.same:
            if not stacks:
                raise NoLoop
            one = {"ref": self.same[place], "index": index}
            narrow = {**entry, "shape": [1 if d == axis else size for d, size in enumerate(entry["shape"])]}
            given = self._add(f"{name}_one", "unsqueeze.default", [one, axis], narrow)
            return self._add(f"{name}_steps", "expand.default", [given, entry["shape"]], entry)
        shape = [count, *self._copies(place)[0]["outputs"][index]["shape"]]
        given = {"ref": self.name, "index": self._collected(place, index)}
        if step:
            given = self._add(f"{name}_flip", "flip.default", [given, [0]], {**entry, "shape": shape}, True)
        order = [*range(1, axis + 1), 0, *range(axis + 1, rank + (not stacks))]
        plain = axis == 0
        moved = {**entry, "shape": [shape[d] for d in order]}
        given = self._add(f"{name}_steps", "permute.default", [given, order], moved, plain)
        if stacks:
            return given
        return self._add(f"{name}_flat", "reshape.default", [given, entry["shape"]], entry, plain)

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
            value = self._value(*following)
            if value not in outputs:
                outputs.append(value)
            states.append({"input": place, "output": outputs.index(value)})
            results.append({**inputs[place], "contiguous": True})
        if not results:
            raise NoLoop
        results = [{k: entry[k] for k in ("shape", "dtype", "contiguous")} for entry in results]
        names = self._plain_names(body)
        return {
            "name": self.name,
            "op": "repeat.steps",
            "args": self.arguments,
            "kwargs": {},
            "outputs": results,
            "repeat": {
                "steps": count,
                "inputs": inputs,
                "nodes": _settled(body, names, 0),
                "outputs": _settled(outputs, names, 0),
                "stacked": len(self.stacked),
                "taken": self.taken,
                "carried": states,
            },
        }

    def _plain_names(self, body: Sequence[Node]) -> dict[str, str]:
        """Names for the nodes of a step. They do not depend on the loops before it."""
        names: dict[str, str] = {}
        taken = {made["name"] for made in self.inputs.values()}
        for node in body:
            plain = name = re.sub(r"_\d+(?=_|$)", "", node["name"])
            number = 0
            while name in taken:
                number += 1
                name = f"{plain}_{number}"
            taken.add(name)
            names[node["name"]] = name
        return names


def _settled(value: Any, names: Mapping[str, str], stacked: int) -> Any:
    """A node or an argument with new names, and with the place of the last states among the results of the loop."""
    if isinstance(value, list):
        return [_settled(v, names, stacked) for v in value]
    if not isinstance(value, dict):
        return value
    found = {
        key: item if key == "repeat" else _settled(item, names, stacked) for key, item in value.items() if key != "last"
    }
    if "last" in value:
        found["index"] = stacked + value["last"]
    return {**found, **{key: names.get(found[key], found[key]) for key in ("ref", "name") if key in found}}
