"""TorchInductor's own kernels for a problem, as a candidate file (worker-side half: ``_inductor.py``).

The C++ is the vectorised code that ``torch.compile`` runs, built against the torch header that it includes. The file
also holds the rest of the compiled module: buffers, library calls, and their order. So the candidate is as fast as
``torch.compile`` without the guards around each call. All shape variants are in one file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from kernelwright.codegen._cost import cost
from kernelwright.codegen._file import Generated, carried, class_head, module_imports, signature
from kernelwright.codegen._graph import Graph
from kernelwright.codegen._seed_memory import by_address

_PRELUDE = """// Kernels of TorchInductor for this problem's shapes, and for processors with {isa}.
{guard}#include <torch/csrc/inductor/cpp_prefix.h>
#include <pybind11/pybind11.h>
"""
_GUARDS = {
    512: "#ifndef __AVX512F__\n#error these kernels are for processors with AVX-512\n#endif\n"
    "#define CPU_CAPABILITY AVX512\n#define CPU_CAPABILITY_AVX512\n",
    256: "#ifndef __AVX2__\n#error these kernels are for processors with AVX2\n#endif\n"
    "#define CPU_CAPABILITY AVX2\n#define CPU_CAPABILITY_AVX2\n",
}
_ISA = {512: "AVX-512", 256: "AVX2"}
_HEAD = re.compile(r'extern "C"\s+void\s+kernel\((.*?)\)\s*\{', re.DOTALL)
_FOREIGN = re.compile(r"\brandn?_cpu|\bload_seed|\bcpp_fused\w*\(")
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
'''


def inductor_seed(graph: Graph, payload: Mapping[str, Any]) -> Generated | None:
    """A candidate made of TorchInductor's kernels.

    Args:
        graph: the captured problem.
        payload: what ``inductor_entry`` returned for it in a worker.

    Returns:
        The candidate, or None if TorchInductor refused or has no kernel of its own here, if buffers are written,
        gradients are wanted or the outputs are nested, or if a kernel uses helpers that only the compiled module has.
    """
    if not payload.get("ok") or graph.writes or graph.gradient or graph.structure not in ("tensor", "tuple", "list"):
        return None
    kernels: list[_Kernel] = []
    methods: list[str] = []
    keys: list[str] = []
    for number, variant in enumerate(payload["variants"]):
        for name, code in variant["kernels"].items():
            kernel = _kernel(code, f"{name}_v{number}")
            if kernel is None:
                return None
            kernels.append(kernel)
        methods.append(_method(graph, variant, number))
        shapes = tuple(tuple(i["shape"]) for i in variant["inputs"] if i["kind"] == "input")
        keys.append(f"{shapes!r}: '_variant{number}'")
    if not kernels:
        return None
    found = cost(graph)
    report = ({"kind": "inductor", "name": "", "ops": [n.op.split(".")[0] for n in graph.nodes], "why": "",
               "bytes": found["bytes_moved"], "flops": found["flops"]},)  # fmt: skip
    source = _source(kernels, payload["vector_bits"])
    return Generated(_file(graph, source, methods, keys), {}, report, found["bytes_moved"], found["flops"])


class _Kernel(NamedTuple):
    """A C++ function, and the line that makes it callable with addresses."""

    text: str
    binding: str


def _kernel(code: str, name: str) -> _Kernel | None:
    """One kernel under a name of its own, or None if it needs helpers that only the compiled module has."""
    text = re.sub(r"#include .*\n", "", code)
    head = _HEAD.search(text)
    if head is None or _FOREIGN.search(text):
        return None
    text = text.replace(head[0], f"static void {name}({head[1]}) {{")
    declared = [re.fullmatch(r"(.*?)(\w+)", part.strip(), re.DOTALL) for part in head[1].split(",")]
    types = [part[1].strip() for part in declared if part is not None]
    taken = [f"{'int64_t' if kind.endswith('*') else kind} a{place}" for place, kind in enumerate(types)]
    given = [f"reinterpret_cast<{t}>(a{n})" if t.endswith("*") else f"a{n}" for n, t in enumerate(types)]
    binding = f'    m.def("{name}", []({", ".join(taken)}) {{ {name}({", ".join(given)}); }});'
    return _Kernel(text.strip() + "\n", binding)


def _source(kernels: list[_Kernel], vector_bits: int) -> str:
    head = _PRELUDE.format(isa=_ISA.get(vector_bits, "any instruction set"), guard=_GUARDS.get(vector_bits, ""))
    functions = "\n".join(kernel.text for kernel in kernels)
    bindings = "\n".join(kernel.binding for kernel in kernels)
    return f"{head}\n{functions}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{\n{bindings}\n}}\n"


def _method(graph: Graph, variant: Mapping[str, Any], number: int) -> str:
    """One variant's wrapper as a method."""
    names = [i["name"] for i in variant["inputs"]]
    given = [_given(graph, i) for i in variant["inputs"]]
    lines = [f"    def _variant{number}(self, {', '.join(graph.forward_parameters)}):"]
    lines += [f"        {name} = {value}" for name, value in zip(names, given, strict=True) if name != value]
    body = []
    for line in variant["body"]:
        text = line.strip()
        if not text or text.startswith(("#", "args.clear", "del ", "assert_")) or text.endswith("= args"):
            continue
        text = re.sub(r"; del .*$", "", text)
        call = re.match(r"(cpp_fused\w*)\((.*)\)$", text)
        if call:
            text = f"lib.{call[1]}_v{number}({_addresses(call[2])})"
        body.append(text)
    result = variant["result"]
    lines += [f"        {text}" for text in by_address(body, result)]
    parts = result.strip("()").rstrip(", ")
    wanted = {"tensor": parts, "tuple": result, "list": f"[{parts}]"}[graph.structure]
    return "\n".join([*lines, f"        return {wanted}"])


def _given(graph: Graph, item: Mapping[str, Any]) -> str:
    if item["kind"] == "input":
        return str(graph.forward_parameters[item["target"]])
    return graph.place(item["target"])


def _addresses(arguments: str) -> str:
    """The arguments of a kernel, with tensors as addresses. TorchInductor's kernels handle strided buffers."""
    parts, depth, current = [], 0, ""
    for char in arguments:
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    parts.append(current.strip())
    return ", ".join(p if re.fullmatch(r"-?[\d.]+L?", p) else f"{p}.data_ptr()" for p in parts if p)


def _file(graph: Graph, source: str, methods: list[str], keys: list[str]) -> str:
    made = carried(graph)
    inputs = [i.target for i in graph.inputs if i.kind == "input"]
    key = "(" + "".join(f"tuple({name}.shape), " for name in inputs) + ")"
    arguments = ", ".join(graph.forward_parameters)
    name = f"inductor_{hashlib.sha256(source.encode()).hexdigest()[:12]}"  # a process may load several
    lines = [
        *module_imports(made, ""),
        "from torch.utils.cpp_extension import load_inline",
        "",
        f"SOURCE = r'''\n{source}'''",
        'FLAGS = ["-fno-math-errno", "-fno-trapping-math"]',
        f'lib = load_inline("{name}", SOURCE, extra_cflags=FLAGS, no_implicit_headers=True)',
        "",
        _SHIMS,
        "",
        f"VARIANTS = {{{', '.join(keys)}}}",
        "",
        "",
        *([made.helpers, "", ""] if made.helpers else []),
        *class_head(made),
        f"    def forward(self, {signature(graph)}):",
        f"        return getattr(self, VARIANTS[{key}])({arguments})",
        "",
        "\n\n".join(methods),
    ]
    return "\n".join(lines) + "\n"
