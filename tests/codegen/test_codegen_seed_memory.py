"""What around TorchInductor's kernels needs no tensor of its own."""

from __future__ import annotations

import pytest
import torch

from kernelwright.codegen._seed_memory import by_address

A = "a = empty_strided_cpu((64, 16), (16, 1), torch.float32)"
B = "b = empty_strided_cpu((2, 96), (96, 1), torch.float64)"
PART = "part = reinterpret_tensor(b, (2, 4), (96, 1), 8)  # alias"
C = "c = empty_strided_cpu((3, 5), (5, 1), torch.float32)"
CALL = "lib.k(x.data_ptr(), a.data_ptr(), part.data_ptr(), b.data_ptr(), c.data_ptr())"


def test_buffers_between_kernels_lie_in_one_piece_and_parts_are_offsets():
    assert by_address([A, B, PART, C, CALL], "(c, )") == [
        "_buffers = torch.empty(5632, dtype=torch.uint8)",  # 64 x 16 x 4 and 2 x 96 x 8 bytes
        "_at = _buffers.data_ptr()",
        C,
        "lib.k(x.data_ptr(), (_at + 0), ((_at + 4096) + 64), (_at + 4096), c.data_ptr())",
    ]


def test_what_is_returned_stays_a_tensor_and_its_parts_are_offsets_all_the_same():
    assert by_address([B, PART, C, "lib.k(part.data_ptr(), c.data_ptr())"], "(b, c)") == [
        B,
        C,
        "lib.k((b.data_ptr() + 64), c.data_ptr())",
    ]


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        ([A, B, "extern_kernels.mm(a, y, out=b)"], "(c, )"),
        ([B, PART, "c = part", "lib.k(c.data_ptr())"], "(c, )"),
        ([B, PART], "(part, )"),
        (["part = reinterpret_tensor(x, (2, 4), (96, 1), 8)", "lib.k(part.data_ptr())"], "(y, )"),
        ([A, "lib.k(a.data_ptr(), aa.data_ptr())"], "(y, )"),
    ],
    ids=["a library's operand", "another name", "a part that is returned", "a part of an input", "one buffer alone"],
)
def test_what_is_used_as_a_tensor_stays_one(lines, result):
    assert by_address(lines, result) == lines


def test_pieces_do_not_touch_each_other():
    lines = by_address(
        ["a = empty_strided_cpu((3, 2), (1, 7), torch.int64)", C, "say(a.data_ptr(), c.data_ptr())"], "()"
    )
    said: list[int] = []
    exec("\n".join(lines), {"torch": torch, "say": lambda *addresses: said.extend(addresses)})
    assert said[1] - said[0] == 128  # (2 + 7 + 1) x 8 bytes, and the next multiple of 64
