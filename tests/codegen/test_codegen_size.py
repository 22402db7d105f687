"""Sizes over variants and affine indices."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.codegen._size import Affine, Loop, Size, contiguous_strides, delinearise, linearise, product, refine
from kernelwright.codegen._triton_tiles import is_large


def S(*values):
    return Size(values)


def test_refine_finds_the_common_grid():
    assert refine([S(6), S(4)], [S(2), S(12)]) == [S(2), S(3), S(4)]
    assert refine([S(8, 3), S(5, 7)], [S(40, 21)]) == [S(8, 3), S(5, 7)]
    assert refine([S(6), S(4)], [S(4), S(6)]) is None
    assert refine([S(1), S(5)], [S(5), S(1)]) == [S(5)]


@settings(deadline=None)
@given(st.lists(st.integers(2, 5), min_size=1, max_size=4), st.data())
def test_delinearise_inverts_linearise(shape, data):
    sizes = [S(n) for n in shape]
    loops = [Loop(f"i{d}", s) for d, s in enumerate(sizes)]
    position = linearise([Affine.of(lp) for lp in loops], sizes, 1)
    cut = data.draw(st.integers(0, len(shape)))
    merged = [product(sizes[:cut], 1), product(sizes[cut:], 1)]
    index = delinearise(position, merged, 1)
    assert index is not None
    assert linearise(index, merged, 1) == position
    assert index[0].loops == frozenset(loops[:cut])


def test_an_index_that_is_not_affine_is_refused():
    loop = Loop("i", S(12))
    assert delinearise(Affine.of(loop), [S(3), S(4)], 1) is None


def test_strides_and_vectors():
    assert contiguous_strides([S(2, 5), S(3, 7)], 2) == (S(3, 7), S(1, 1))
    assert (S(4, 6) // 2 + 1 - S(1, 2)) * S(2, 2) == S(4, 4)
    assert S(3, 3).is_const
    assert not S(3, 4).is_const
    assert S(3, 4).divides(S(6, 8))


def test_an_index_has_64_bits_where_32_do_not_hold_it_in_any_variant():
    assert is_large([S(10), S(1 << 31)])
    assert is_large([S(10, 1 << 31)])
    assert not is_large([S((1 << 31) - 1)])
