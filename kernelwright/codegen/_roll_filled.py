"""Tensors that a captured graph fills slice by slice (``out[:, t] = h``) become stacks of their slices.

Worker side, on plain data (see :class:`Nodes`). ``torch.export`` writes each assignment as a new tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Node = dict[str, Any]

_SCATTER = "select_scatter.default"
_MOST_KEPT = 2  # slices that keep their value


def filled(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph with stacks; the graph itself if nothing is assigned to slices."""
    if not any(node["op"] == _SCATTER for node in graph["nodes"]):
        return graph
    return _stacked(_without_detours(graph))


def _without_detours(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph in which a slice that was assigned is read where it comes from."""
    known: dict[str, Node] = {}
    entries = {(item["name"], 0): item for item in graph["inputs"]}
    aliases: dict[str, Any] = {}
    for node in graph["nodes"]:
        node = {**node, **_renamed({"args": node["args"], "kwargs": node["kwargs"]}, aliases)}
        entries.update({(node["name"], n): entry for n, entry in enumerate(node["outputs"])})
        if node["op"] == "copy.default":
            given, here = (_entry(entries, ref) for ref in (node["args"][1], {"ref": node["name"]}))
            if given and all(given[key] == here[key] for key in ("shape", "dtype")):
                aliases[node["name"]] = node["args"][1]
                continue
        if node["op"] == "select.int":
            source, assigned = _source(known, *node["args"])
            if assigned is not None:
                aliases[node["name"]] = assigned
                continue
            node = {**node, "args": [source, *node["args"][1:]]}
        known[node["name"]] = node
    ends = _renamed({key: graph[key] for key in ("outputs", "writes")}, aliases)
    return _needed({**graph, **ends, "nodes": list(known.values())})


def _source(known: Mapping[str, Node], source: Any, dim: int, place: int) -> tuple[Any, Any]:
    """Where a slice of a tensor is to be read, and the value that was assigned to it, if any."""
    while (node := known.get(source["ref"])) and node["op"] == _SCATTER:
        if (place < 0) != (node["args"][3] < 0) or dim != node["args"][2]:
            break  # these may be the same slice, written in two ways
        if place == node["args"][3]:
            return source, node["args"][1]
        source = node["args"][0]
    return source, None


def _stacked(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph with a stack in place of the last one of a row of assignments."""
    known = {node["name"]: node for node in graph["nodes"]}
    entries = {(node["name"], n): entry for node in graph["nodes"] for n, entry in enumerate(node["outputs"])}
    entries.update({(item["name"], 0): item for item in graph["inputs"]})
    uses = Counter(ref["ref"] for part in (graph["nodes"], graph["outputs"], graph["writes"]) for ref in refs(part))
    links = {node["args"][0]["ref"] for node in graph["nodes"] if node["op"] == _SCATTER}
    nodes: list[Node] = []
    for node in graph["nodes"]:
        last = node["op"] == _SCATTER and not (node["name"] in links and uses[node["name"]] == 1)
        nodes += _stack(node, known, uses, entries) if last else [node]
    return _needed({**graph, "nodes": nodes})


def _stack(node: Node, known: Mapping[str, Node], uses: Mapping[str, int], entries: Mapping[Any, Any]) -> list[Node]:
    """A stack that is equal to the last one of a row of assignments; this node itself if few slices are assigned."""
    result, axis = node["outputs"][0], node["args"][2]
    dim = axis % len(result["shape"])
    size = result["shape"][dim]
    shape = [extent for d, extent in enumerate(result["shape"]) if d != dim]
    slices: dict[int, Any] = {}
    link, base = node, {"ref": node["name"]}
    while link["op"] == _SCATTER and link["args"][2] == axis and (link is node or uses[link["name"]] == 1):
        base, value, _, place = link["args"]
        entry = _entry(entries, value)
        if entry is None or entry["shape"] != shape or entry["dtype"] != result["dtype"]:
            return [node]
        slices.setdefault(place % size, value)
        link = known.get(base["ref"], {"op": ""})
    kept = [place for place in range(size) if place not in slices]
    if len(slices) < 2 or len(kept) > _MOST_KEPT:
        return [node]
    made = []
    for place in kept:
        entry = {"shape": shape, "dtype": result["dtype"], "contiguous": False}
        made.append({"name": f"{node['name']}_kept_{place}", "op": "select.int", "args": [base, dim, place],
                     "kwargs": {}, "outputs": [entry]})  # fmt: skip
        slices[place] = {"ref": made[-1]["name"]}
    return [*made, {**node, "op": "stack.default", "args": [[slices[place] for place in range(size)], dim]}]


def _needed(graph: dict[str, Any]) -> dict[str, Any]:
    """The graph without nodes that nothing is computed from."""
    wanted = {ref["ref"] for part in (graph["outputs"], graph["writes"]) for ref in refs(part)}
    nodes = []
    for node in reversed(graph["nodes"]):
        if node["name"] in wanted:
            nodes.append(node)
            wanted |= {ref["ref"] for ref in refs([node["args"], node["kwargs"]])}
    return {**graph, "nodes": nodes[::-1]}


def _entry(entries: Mapping[Any, Any], ref: Any) -> Any:
    return entries.get((ref["ref"], ref.get("index", 0))) if isinstance(ref, dict) and "ref" in ref else None


def refs(value: Any) -> Iterator[Any]:
    """The references to tensors within an argument."""
    if isinstance(value, list):
        for item in value:
            yield from refs(item)
    elif isinstance(value, dict):
        if "ref" in value:
            yield value
        for item in value.values():
            yield from refs(item)


def _renamed(value: Any, aliases: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, aliases) for item in value]
    if not isinstance(value, dict):
        return value
    if "ref" in value:
        return {**value, **aliases.get(value["ref"], {})}
    return {key: _renamed(item, aliases) for key, item in value.items()}
