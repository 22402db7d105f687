"""Faults to seed into correct kernels. A Tester makes its generators to catch them.

A fault spoils the float inputs of a kernel, row by row (a row lies along the last dimension), like a class of real
mistakes: the kernel computes as if some element were another one. So a fault can precede any kernel in any language.
Loud faults show on most data; quiet ones only on data of a certain form.
"""

from __future__ import annotations

import ast
from typing import NamedTuple

__all__ = ["MUTATIONS", "Mutation", "mutate"]


class Mutation(NamedTuple):
    """A fault. ``code`` is C++ over ``in``, ``out`` (a copy of the row, to be changed), ``n`` and ``r``, the row.

    ``before`` is the row before this one, or null for the first.
    """

    name: str
    category: str
    code: str


_TOP = "int64_t top = 0; for (int64_t i = 1; i < n; i++) if (in[i] > in[top]) top = i;"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation("odd-last", "odd sizes", "if (n % 2 && n > 1) out[n - 1] = in[n - 2];"),
    Mutation("odd-last-largest", "odd sizes", f"{_TOP} if (n % 2 && n > 1 && top == n - 1) out[top] = in[0];"),
    Mutation(
        "tie-of-maxima",
        "ties",
        f"{_TOP} for (int64_t i = top + 1; i < n; i++) if (in[i] == in[top]) out[i] = in[i] / 2 - 1;",
    ),
    Mutation(
        "tie-of-two",
        "ties",
        f"{_TOP} int64_t same = 0, last = top;"
        "for (int64_t i = 0; i < n; i++) if (in[i] == in[top]) { same++; last = i; }"
        "if (same == 2) out[last] = in[last] / 2 - 1;",
    ),
    Mutation(
        "clipped",
        "large magnitude",
        "for (int64_t i = 0; i < n; i++) out[i] = in[i] > 1000 ? 1000 : in[i] < -1000 ? -1000 : in[i];",
    ),
    Mutation(
        "all-far-below-zero",
        "large magnitude",
        f"{_TOP} if (in[top] < -20) for (int64_t i = 0; i < n; i++) out[i] = in[top];",
    ),
    Mutation("misaligned-first", "alignment", "if ((uintptr_t)in % 32 && n > 1) out[0] = in[1];"),
    Mutation(
        "misaligned-pair",
        "alignment",
        "if ((uintptr_t)in % 32 && n > 2 && in[0] == in[1] && in[1] != in[2]) out[0] = in[2];",
    ),
    Mutation(
        "row-taken-for-the-one-before",
        "aliasing",
        "if (before && n > 1 && in[0] == before[0] && in[1] == before[1])"
        "  for (int64_t i = 0; i < n; i++) out[i] = before[i];",
    ),
    Mutation(
        "largest-as-before",
        "aliasing",
        f"{_TOP} float same = in[top], largest = -INFINITY; for (int64_t i = 0; before && i < n; i++)"
        "  largest = before[i] > largest ? before[i] : largest;"
        "if (before && same == largest) for (int64_t i = 0; i < n; i++) out[i] = before[i];",
    ),
    Mutation("last-dropped", "a dropped term", "if (n > 1) out[n - 1] = 0;"),
    Mutation(
        "dropped-after-a-climb",
        "a dropped term",
        "int64_t run = 0; for (int64_t i = 1; i < n; i++) { run = in[i] > in[i - 1] ? run + 1 : 0;"
        "  if (run >= 16) { out[i] = 0; run = 0; } }",
    ),
)

_WRAPPER = '''

from kernelwright.inline import cpp as _seeded_cpp

_seeded = _seeded_cpp(r"""
#include <cmath>
#include <cstdint>
#include <cstring>

extern "C" void seeded(const float* from, float* to, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r++) {
    const float *in = from + r * n, *before = r ? in - n : nullptr;
    float* out = to + r * n;
    std::memcpy(out, in, n * sizeof(float));
    %(code)s
  }
}
""")


def _with_a_fault(value):
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float32 or not value.is_contiguous():
        return value
    if value.dim() == 0 or value.numel() == 0:
        return value
    spoilt = torch.empty_like(value)
    _seeded.seeded(value, spoilt, value.numel() // value.shape[-1], value.shape[-1])
    return spoilt


class ModelNew(%(right)s):
    def forward(self, *values):
        return super().forward(*map(_with_a_fault, values))
'''


def mutate(source: str, mutation: Mutation) -> str:
    """The candidate's source with a fault before its kernels.

    Raises:
        ValueError: the source has no class ``ModelNew``, or does not import torch.
    """
    tree = ast.parse(source)
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ModelNew"]
    imports = [name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names]
    if not classes or "torch" not in imports:
        raise ValueError("a candidate defines class ModelNew and imports torch")
    lines = source.splitlines()
    at = classes[-1].lineno - 1
    lines[at] = lines[at].replace("ModelNew", "RightModel", 1)
    text = "\n".join(lines).replace("super(ModelNew,", "super(RightModel,")
    return text + _WRAPPER % {"code": mutation.code, "right": "RightModel"}
