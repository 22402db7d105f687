"""TorchInductor's own kernels for a problem, as a candidate file (worker-side half: ``_inductor.py``).

The generated C++ is rewritten to a C ABI without torch's headers: a small prelude stands in for the helpers that its
scalar loops use, and our vector-friendly ``exp`` and friends for libm's. What needs more of torch gives no candidate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernelwright.codegen._cost import cost
from kernelwright.codegen._file import Generated, carried, class_head, module_imports, signature
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._math import math_library

_PRELUDE = """#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#define C10_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define C10_UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define TORCH_CHECK(...)

template <typename T>
static inline T max_propagate_nan(T a, T b) { return (a > b || a != a) ? a : b; }
template <typename T>
static inline T min_propagate_nan(T a, T b) { return (a < b || a != a) ? a : b; }
template <typename To, typename From>
static inline To convert(From value) { return static_cast<To>(value); }
"""
_MATH = {name: f"kw_{name}" for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "tanh", "erf", "pow")}
_FOREIGN = re.compile(r"\b(at|c10|torch)::|IndexValue|[wW]elford|make_unique|cascade|randn?_cpu|\batomic_add")
_SHIMS = '''
class extern_kernels:
    """The library calls of TorchInductor's wrapper."""

    mm, bmm, addmm, baddbmm = torch.mm, torch.bmm, torch.addmm, torch.baddbmm
    convolution = torch.ops.aten.convolution


aten = torch.ops.aten


def empty_strided_cpu(size, stride, dtype):
    return torch.empty_strided(size, stride, dtype=dtype)


def reinterpret_tensor(tensor, size, stride, offset):
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def address(tensor):
    return ctypes.c_void_p(tensor.data_ptr())'''


def inductor_seed(graph: Graph, payload: Mapping[str, Any]) -> Generated | None:
    """A candidate made of TorchInductor's kernels.

    Args:
        graph: the captured problem.
        payload: what ``inductor_entry`` returned for it in a worker.

    Returns:
        The candidate, or None where there is none: Inductor refused, has no kernel of its own here, or its kernels use
        helpers of torch's headers that have no stand-in.
    """
    if not payload.get("ok") or graph.structure not in ("tensor", "tuple", "list"):
        return None
    functions: list[str] = []
    methods: list[str] = []
    keys: list[str] = []
    for number, variant in enumerate(payload["variants"]):
        for name, code in variant["kernels"].items():
            text = _portable(code, f"{name}_v{number}")
            if text is None:
                return None
            functions.append(text)
        methods.append(_method(graph, variant, number))
        shapes = tuple(tuple(i["shape"]) for i in variant["inputs"] if i["kind"] == "input")
        keys.append(f"{shapes!r}: self._variant{number}")
    if not functions:
        return None
    found = cost(graph)
    report = ({"kind": "inductor", "name": "", "ops": [n.op.split(".")[0] for n in graph.nodes], "why": "",
               "bytes": found["bytes_moved"], "flops": found["flops"]},)  # fmt: skip
    return Generated(_file(graph, functions, methods, keys), {}, report, found["bytes_moved"], found["flops"])


def _portable(code: str, name: str) -> str | None:
    """One kernel with a C ABI and no header of torch's, or None where it needs more of them."""
    text = re.sub(r"#include .*\n", "", code)
    text = re.sub(r"^.*inductor_cpu_\w*integer_div_error.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r'extern "C"\s+void\s+kernel\(', f'extern "C" void {name}(', text)
    text = text.replace("c10::convert<", "convert<")
    text = re.sub(r"\bstd::(\w+)\(", lambda m: f"{_MATH.get(m[1], 'std::' + m[1])}(", text)
    if _FOREIGN.search(text):
        return None
    return _with_reductions(text).strip() + "\n"


def _with_reductions(text: str) -> str:
    """Allow sums in vector lanes: a pragma for innermost loops whose only accumulators are sums."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("for("):
            continue
        indent = len(line) - len(line.lstrip())
        end = next(n for n in range(number + 1, len(lines)) if lines[n].startswith(" " * indent + "}"))
        body = "\n".join(lines[number + 1 : end])
        sums = set(re.findall(r"\b(tmp_acc\d+) = \1 \+ ", body))
        others = set(re.findall(r"\b(tmp_acc\d+) = ", body)) - sums
        if "for(" not in body and sums and not others:
            lines[number] = f"{' ' * indent}#pragma omp simd reduction(+ : {', '.join(sorted(sums))})\n{line}"
    return "\n".join(lines)


def _method(graph: Graph, variant: Mapping[str, Any], number: int) -> str:
    """One variant's wrapper as a method."""
    names = [i["name"] for i in variant["inputs"]]
    given = [_given(graph, i) for i in variant["inputs"]]
    lines = [f"    def _variant{number}(self, {', '.join(graph.forward_parameters)}):"]
    lines += [f"        {name} = {value}" for name, value in zip(names, given, strict=True) if name != value]
    for line in variant["body"]:
        text = line.strip()
        if not text or text.startswith(("#", "args.clear", "del ", "assert_")) or text.endswith("= args"):
            continue
        text = re.sub(r"; del .*$", "", text)
        call = re.match(r"(cpp_fused\w*)\((.*)\)$", text)
        if call:
            text = f"lib.{call[1]}_v{number}({_addresses(call[2])})"
        lines.append(f"        {text}")
    result = variant["result"]
    parts = result.strip("()").rstrip(", ")
    wanted = {"tensor": parts, "tuple": result, "list": f"[{parts}]"}[graph.structure]
    return "\n".join([*lines, f"        return {wanted}"])


def _given(graph: Graph, item: Mapping[str, Any]) -> str:
    if item["kind"] == "input":
        return str(graph.forward_parameters[item["target"]])
    return graph.place(item["target"])


def _addresses(arguments: str) -> str:
    """Tensors go over by address: Inductor's buffers may be strided, which it takes care of itself."""
    parts, depth, current = [], 0, ""
    for char in arguments:
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    parts.append(current.strip())
    return ", ".join(p if re.fullmatch(r"-?[\d.]+L?", p) else f"address({p})" for p in parts if p)


def _file(graph: Graph, functions: list[str], methods: list[str], keys: list[str]) -> str:
    made = carried(graph)
    code = "\n".join(functions)
    inputs = [i.target for i in graph.inputs if i.kind == "input"]
    key = "(" + "".join(f"tuple({name}.shape), " for name in inputs) + ")"
    arguments = ", ".join(graph.forward_parameters)
    lines = [
        *module_imports(made, "", ["import ctypes"]),
        "",
        "from kernelwright.inline import cpp",
        "",
        f"SOURCE = r'''\n{_PRELUDE}{math_library(code)}\n{code}'''",
        'lib = cpp(SOURCE, flags=("-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512"))',
        "",
        _SHIMS,
        "",
        "",
        *([made.helpers, "", ""] if made.helpers else []),
        *class_head(made),
        f"    def forward(self, {signature(graph)}):",
        f"        variants = {{{', '.join(keys)}}}",
        f"        return variants[{key}]({arguments})",
        "",
        "\n\n".join(methods),
    ]
    return "\n".join(lines) + "\n"
