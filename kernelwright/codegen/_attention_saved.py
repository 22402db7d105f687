"""Lets an attention's backward pass compute the weights again, instead of reading them.

Of a row of weights, only the logarithm of the sum of exponentials is saved, as in Dao et al., "FlashAttention" (2022).
The gradient of a softmax needs the sum over a row of weights times their gradients. It is the sum over a row of the
attention's output times its gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelwright.codegen._attention import fuse_attention
from kernelwright.codegen._attention_gradient import fuse_gradients
from kernelwright.codegen._graph import Gradient, Graph, Input, Node, Ref, Symbol, TensorInfo
from kernelwright.codegen._ir import VIEWS
from kernelwright.codegen._lower import lower
from kernelwright.codegen._size import Size

_ORDERED = ("view", "reshape", "_unsafe_view", "expand", "clone", "detach", "alias")  # row-major order stays
_LAYOUTS = (*_ORDERED, "transpose", "permute")
_PRODUCTS = ("bmm", "matmul", "mm")
_FLOAT = Symbol("dtype", "float32")


def without_weights(graph: Graph, options: Mapping[str, Any]) -> Graph:
    """The graph with attention's weights computed again, where kernels of our own then compute both of its passes."""
    if graph.gradient is None or options["attention"] != "fused":
        return graph
    before = _calls(graph)
    for node in [n for n in graph.nodes if n.op == "_softmax.default"]:
        made = _Rewriter(graph, node).graph()
        calls = _calls(made) if made is not None else before
        if made is not None and calls[0] > before[0] and calls[1] < before[1] and calls[2] == before[2]:
            graph, before = made, calls
    return graph


def _calls(graph: Graph) -> tuple[int, int, int]:
    """Attention of the forward pass, products of the backward pass, and its other calls, as for random numbers."""
    programs = [fuse_gradients(fuse_attention(lower(half, backend="triton"))) for half in graph.halves]
    there, back = ([v.op for v in program.values if not v.is_fusible] for program in programs)
    products, known = back.count("matmul"), (*VIEWS, "leaf", "matmul", "attention", "second")
    return there.count("attention"), products, sum(op not in known for op in back)


@dataclass(frozen=True)
class _Tensor:
    """How a pass names a tensor, with its shape and dtype."""

    ref: Ref
    info: TensorInfo


class _Rewriter:
    """Rewrites both passes for one softmax."""

    def __init__(self, graph: Graph, softmax: Node) -> None:
        assert graph.gradient is not None
        self.old, self.gradient, self.softmax = graph, graph.gradient, softmax
        self.kept = dict(zip(graph.outputs[self.gradient.returned :], self.gradient.saved, strict=True))
        self.makers = {node.name: node for node in graph.nodes}
        self.there, self.back = list(graph.nodes), list(self.gradient.back.nodes)
        self.inputs = {item.name: item for item in self.gradient.back.inputs}
        self.renamed: dict[str, Ref] = {}
        self.between = self._between()

    def graph(self) -> Graph | None:
        """The rewritten graph; None if the softmax is none of attention's."""
        weights, scores = Ref(self.softmax.name), self.softmax.args[0]
        rank = len(self.softmax.outputs[0].shape)
        returned = self.old.outputs[: self.gradient.returned]
        last = self.softmax.args[1] in (-1, rank - 1)
        saved = weights in self.kept and weights not in returned
        if not last or not saved or not isinstance(scores, Ref) or not self.between:
            return None
        weighed = self._product(weights)
        slopes = self._slopes(weights)
        if weighed is None or slopes is None:
            return None
        before = _behind_all([scores], self.makers)
        for ref in [r for r in self.kept if r.name in before and self._is_cheap(r)]:
            self._again(ref)
        total, gradient = slopes
        if not self._sum(total, gradient, self._result(weighed)):
            return None
        self._weights(weights, self._again(scores))
        return self._finished(returned)

    # ------------------------------------------------------------------------------------------ the graph before

    def _between(self) -> set[str]:
        """Names of the one product from which the scores are computed, and of the steps from it to them; else none."""
        products: set[str] = set()
        steps = _behind_all(_refs(self.softmax.args), self.makers, products)
        if len(products) != 1:
            return set()
        return products | {n for n in steps if products <= _behind_all([Ref(n)], self.makers)}

    def _product(self, weights: Ref) -> Node | None:
        """The product that the weights go into, if nothing else reads them."""
        at = weights
        while True:
            users = list(_users(self.old.nodes, at))
            if len(users) != 1:
                return None
            if _base(users[0]) in _PRODUCTS and users[0].args[0] == at:
                return users[0] if self._info(at).shape[-1] == self._info(weights).shape[-1] else None
            if _base(users[0]) not in (*_ORDERED, "_to_copy"):
                return None
            at = Ref(users[0].name)

    def _slopes(self, weights: Ref) -> tuple[Node, Ref] | None:
        """The sums over weights times their gradients, and the gradient of the product's result."""
        makers = {node.name: node for node in self.back}
        for total in self.back:
            factors = makers.get(total.args[0].name) if _base(total) == "sum" else None
            last = ((-1,), (len(total.outputs[0].shape) - 1,))
            if factors is None or _base(factors) != "mul" or total.args[1] not in last or total.args[2:] != (True,):
                continue
            for one, other in (factors.args, factors.args[::-1]):
                known, source = (_behind(arg, makers) for arg in (one, other))
                node = makers.get(source.name) if source is not None else None
                if known == Ref(self.kept[weights]) and node is not None and _base(node) in _PRODUCTS:
                    return total, node.args[0]
        return None

    def _is_cheap(self, ref: Ref) -> bool:
        """True where a tensor depends on no input, or lies between the product of the scores and the softmax."""
        before = _behind_all([ref], self.makers)
        return ref.name in self.between or all(name in self.makers for name in before)

    # ------------------------------------------------------------------------------------------ what is made

    def _again(self, ref: Ref) -> Ref:
        """A tensor of the forward pass in the backward pass. It is computed there unless it is known."""
        if ref in self.kept and not self._is_cheap(ref):
            return Ref(self.kept[ref])
        if ref.name not in self.makers:
            return self._save(ref, ref.name, next(i.info for i in self.old.inputs if i.name == ref.name))
        if ref in self.kept:
            name = self.kept.pop(ref)
            del self.inputs[name]
            self.renamed[name] = ref
        if all(node.name != ref.name for node in self.back):
            node = self.makers[ref.name]
            found = {r: self._again(r) for r in _refs((*node.args, *node.kwargs.values()))}
            self.back.append(_renamed(node, found))
        return ref

    def _save(self, ref: Ref, name: str, info: TensorInfo) -> Ref:
        """Save one more tensor."""
        if ref not in self.kept:
            self.kept[ref] = name
            self.inputs[name] = Input(name, "input", name, info)
        return Ref(self.kept[ref])

    def _result(self, weighed: Node) -> _Tensor:
        """The product's result in the backward pass. It is saved in the layout in which the next step takes it."""
        at, path = Ref(weighed.name), [weighed]
        while at not in self.kept:
            users = list(_users(self.old.nodes, at))
            if len(users) != 1 or _base(users[0]) not in _LAYOUTS or _base(users[0]) == "expand":
                break
            path.append(users[0])
            at = Ref(users[0].name)
        saved = self._save(at, f"saved_{weighed.name}", path[-1].outputs[0])
        for before, node in zip(path[-2::-1], path[:0:-1], strict=True):
            info = before.outputs[0]
            if _base(node) == "transpose":
                saved = self._new(f"{node.name}_back", node.op, (saved, *node.args[1:]), info)
            elif _base(node) == "permute":
                dims = [d % len(info.shape) for d in node.args[1]]
                saved = self._new(f"{node.name}_back", node.op, (saved, tuple(map(dims.index, range(len(dims))))), info)
            elif info.shape != node.outputs[0].shape:
                saved = self._new(f"{node.name}_back", "view.default", (saved, info.shape), info)
        return _Tensor(saved, path[0].outputs[0])

    def _sum(self, total: Node, gradient: Ref, result: _Tensor) -> bool:
        """Make the sums of weights times gradients those of results times gradients.

        Returns:
            Whether the gradient has the result's shape.
        """
        known = {**{n.name: n.outputs[0] for n in self.back}, **{i.name: i.info for i in self.inputs.values()}}
        if known[gradient.name].shape != result.info.shape:
            return False
        sides = [
            self._wide(f"{total.name}_{n}", _Tensor(ref, result.info)) for n, ref in enumerate((gradient, result.ref))
        ]
        wide = replace(result.info, dtype="float32", contiguous=True)
        rows = replace(wide, shape=(*wide.shape[:-1], total.outputs[0].shape[-1]))
        terms = self._new(f"{total.name}_terms", "mul.Tensor", tuple(s.ref for s in sides), wide)
        summed = self._new(f"{total.name}_sum", "sum.dim_IntList", (terms, (-1,), True), rows)
        info = total.outputs[0]
        shown = self._new(f"{total.name}_shown", "view.default", (summed, info.shape), replace(rows, shape=info.shape))
        self._narrow(f"{total.name}_again", shown, info)
        self.back.remove(total)
        self.renamed[total.name] = Ref(f"{total.name}_again")
        return True

    def _weights(self, weights: Ref, scores: Ref) -> None:
        """Save the logarithm of the sum of a row's exponentials, and compute the weights from it."""
        name, info = self.softmax.name, self.softmax.outputs[0]
        scores_there = _Tensor(self.softmax.args[0], self._info(self.softmax.args[0]))
        wide = self._wide(f"{name}_wide", scores_there, self.there)
        rows = replace(wide.info, shape=(*info.shape[:-1], Size.const(1, self.old.variants)), contiguous=True)
        there = self._new(f"{name}_rows", "logsumexp.default", (wide.ref, (-1,), True), rows, self.there)
        total = self._save(there, f"saved_{name.strip('_')}_rows", rows)
        wide = self._wide(f"{name}_wide", _Tensor(scores, scores_there.info))
        shifted = self._new(f"{name}_shifted", "sub.Tensor", (wide.ref, total), wide.info)
        found = self._new(f"{name}_exp", "exp.default", (shifted,), wide.info)
        self._narrow(f"{name}_again", found, info)
        saved = self.kept.pop(weights)
        del self.inputs[saved]
        self.renamed[saved] = Ref(f"{name}_again")

    def _info(self, ref: Ref) -> TensorInfo:
        if ref.name in self.makers:
            return self.makers[ref.name].outputs[ref.index]
        return next(item.info for item in self.old.inputs if item.name == ref.name)

    def _new(
        self, name: str, op: str, args: tuple[Any, ...], info: TensorInfo, nodes: list[Node] | None = None, **more: Any
    ) -> Ref:
        (self.back if nodes is None else nodes).append(Node(name, op, args, more, (info,)))
        return Ref(name)

    def _wide(self, name: str, tensor: _Tensor, nodes: list[Node] | None = None) -> _Tensor:
        """A tensor in float32."""
        if tensor.info.dtype == "float32":
            return tensor
        info = replace(tensor.info, dtype="float32")
        return _Tensor(self._new(name, "_to_copy.default", (tensor.ref,), info, nodes, dtype=_FLOAT), info)

    def _narrow(self, name: str, ref: Ref, info: TensorInfo) -> None:
        """A tensor in a captured dtype."""
        self._new(name, "_to_copy.default", (ref,), info, dtype=Symbol("dtype", info.dtype))

    def _finished(self, returned: Sequence[Ref]) -> Graph:
        gradient, names = self.gradient, {Ref(name): ref for name, ref in self.renamed.items()}
        nodes = _sorted([_renamed(node, names) for node in self.back])
        outputs = tuple(names.get(ref, ref) for ref in gradient.back.outputs)
        inputs = tuple(self.inputs.values())
        back = replace(gradient.back, inputs=inputs, nodes=nodes, outputs=outputs)
        changed: Gradient = replace(gradient, saved=tuple(self.kept.values()), back=back)
        return replace(self.old, nodes=tuple(self.there), outputs=(*returned, *self.kept), gradient=changed)


def _base(node: Node) -> str:
    return node.op.split(".")[0]


def _refs(argument: Any) -> Iterator[Ref]:
    """The tensors among arguments."""
    if isinstance(argument, Ref):
        yield argument
    elif isinstance(argument, tuple):
        for one in argument:
            yield from _refs(one)


def _users(nodes: Iterable[Node], ref: Ref) -> Iterator[Node]:
    return (node for node in nodes if ref in _refs((*node.args, *node.kwargs.values())))


def _behind(argument: Any, makers: Mapping[str, Node]) -> Ref | None:
    """The tensor below an argument's views and casts."""
    while isinstance(argument, Ref) and argument.name in makers:
        node = makers[argument.name]
        if _base(node) not in (*_ORDERED, "_to_copy"):
            break
        argument = node.args[0]
    return argument if isinstance(argument, Ref) else None


def _behind_all(refs: Iterable[Ref], makers: Mapping[str, Node], ends: set[str] | None = None) -> set[str]:
    """Names of all that some tensors are computed from, and their own. With ``ends``, products are only put there."""
    found: set[str] = set()
    stack = list(refs)
    while stack:
        name = stack.pop().name
        node = makers.get(name)
        if ends is not None and node is not None and _base(node) in _PRODUCTS:
            ends.add(name)
        elif name not in found:
            found.add(name)
            stack += _refs((*node.args, *node.kwargs.values())) if node is not None else ()
    return found


def _renamed(node: Node, names: Mapping[Ref, Ref]) -> Node:
    def one(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(one, argument))
        return names.get(argument, argument) if isinstance(argument, Ref) else argument

    return replace(node, args=one(node.args), kwargs={k: one(v) for k, v in node.kwargs.items()})


def _sorted(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Nodes in an order in which each comes after what it reads."""
    makers = {node.name: node for node in nodes}
    done: dict[str, Node] = {}

    def place(node: Node) -> None:
        for ref in _refs((*node.args, *node.kwargs.values())) if node.name not in done else ():
            if ref.name in makers:
                place(makers[ref.name])
        done[node.name] = node

    for node in nodes:
        place(node)
    return tuple(done.values())
