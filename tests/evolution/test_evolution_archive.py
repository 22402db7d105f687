"""Cells by measured axes, and who gets a place in them."""

from __future__ import annotations

import math

import pytest
from evolution_world import attempt_of, candidate_of, verdict_of

from kernelwright.errors import UsageError
from kernelwright.evolution import axes_named
from kernelwright.evolution._archive import Archive
from kernelwright.evolution._axes import AXES, DEFAULT_AXES, Grid, describe
from kernelwright.evolution._book import Book, Measure, pooled
from kernelwright.records import KernelResources, Profile, Speedup, Status


def kernel(number: int):
    return candidate_of({"A": number})


def ratio(median: float, width: float = 0.02, faster: bool | None = None) -> Speedup:
    low, high = median * (1 - width), median * (1 + width)
    return Speedup(median=median, low=low, high=high, faster=low > 1.01 if faster is None else faster)


class Cells:
    """An archive over two axes, with kernels that are told by their number."""

    def __init__(self, *axes: str, races: bool = True) -> None:
        self.book = Book("eager", AXES)
        self.archive = Archive(axes_named(axes or ("vector_bits", "code"), "cpp"), self.book, races=races)

    def judged(self, number: int, speedup: float | None, beside=None, *, status=Status.PASSED, **metrics) -> bool:
        candidate = kernel(number)
        rivals = {kernel(rival).sha256: found for rival, found in (beside or {}).items()}
        verdict = verdict_of(
            candidate,
            speedup=None if speedup is None else ratio(speedup),
            rivals=rivals,
            status=status,
            metrics={"vector_bits": 512.0, "code_bytes": 1000.0, **metrics},
        )
        return self.book.take(attempt_of(candidate, verdict, rivals=tuple(rivals)))

    def offered(self, number: int, speedup: float, beside=None, **metrics) -> str:
        assert self.judged(number, speedup, beside, **metrics)
        return self.archive.offer(kernel(number).sha256)

    @property
    def elites(self) -> set[int]:
        numbers = {kernel(number).sha256: number for number in range(50)}
        return {numbers[member.sha256] for member in self.archive.elites}


# ---------------------------------------------------------------------------------------------------- axes


def test_every_axis_that_an_archive_uses_by_itself_is_in_the_table():
    for backend, names in DEFAULT_AXES.items():
        assert [axis.name for axis in axes_named((), backend)] == list(names)
        assert len({axis.name for axis in AXES[backend]}) == len(AXES[backend])


def test_an_unknown_axis_is_named_with_those_there_are():
    with pytest.raises(UsageError, match="no axis 'occupancy'") as caught:
        axes_named(("occupancy",), "cpp")
    assert "vector_bits" in str(caught.value.hint)


def test_a_kernel_of_the_cpu_is_described_by_what_was_measured_on_it():
    metrics = {"kernel_calls": 2.0, "vector_bits": 256.0, "distance_to_roofline": 3.0, "code_bytes": 900.0}
    verdict = verdict_of(kernel(0), speedup=ratio(2.0), metrics={**metrics, "stack_accesses": 5.0}, bound="compute")
    assert describe(verdict, AXES["cpp"]) == {
        "bound": "compute",
        "roofline": 3.0,
        "own_share": 1.0,
        "calls": 2.0,
        "vector_bits": 256.0,
        "spills": 5.0,
        "code": 900.0,
    }


def test_what_is_not_known_of_a_kernel_is_left_out():
    verdict = verdict_of(kernel(0), bound="unknown").model_copy(update={"own_kernel_share": None})
    assert describe(verdict, AXES["cpp"]) == {}


def test_a_kernel_of_a_gpu_is_described_by_its_machine_code():
    def compiled(name, architecture, registers, occupancy):
        return KernelResources(
            kernel=name,
            architecture=architecture,
            registers=registers,
            spilled_bytes=8,
            instructions=100,
            occupancy=occupancy,
        )

    kernels = (
        compiled("a", "sm_80", 255, 0.1),
        compiled("a", "sm_90", 32, 1.0),
        compiled("b", "sm_90", 64, 0.5),
    )
    verdict = verdict_of(kernel(0)).model_copy(update={"profile": Profile(rung="static", kernels=kernels)})
    assert describe(verdict, AXES["triton"]) == {
        "own_share": 1.0,
        "kernels": 2.0,
        "occupancy": 0.5,
        "registers": 64.0,
        "spills": 16.0,
        "code": 200.0,
    }


def test_bins_span_what_was_seen_and_are_cut_anew_beyond_it():
    grid = Grid(axes_named(("code",), "cpp"))  # three bins of the logarithm
    assert grid.stretch({"code": 1000.0})
    assert grid.cell({"code": 1000.0}) == (0,)
    assert grid.stretch({"code": 8000.0})
    assert [grid.cell({"code": size})[0] for size in (1000.0, 1900.0, 2100.0, 4100.0, 8000.0)] == [0, 0, 1, 2, 2]
    assert not grid.stretch({"code": 3000.0})
    assert grid.stretch({"code": 64000.0})
    assert [grid.cell({"code": size})[0] for size in (1000.0, 3900.0, 4100.0, 64000.0)] == [0, 0, 1, 2]
    assert grid.cell({}) == ("?",)


# ---------------------------------------------------------------------------------------------------- places


def test_an_empty_cell_takes_whoever_comes():
    cells = Cells()
    assert cells.offered(1, 0.5) == "new"
    assert cells.offered(2, 2.0, vector_bits=256.0) == "new"
    assert cells.elites == {1, 2}


def test_a_better_timing_alone_wins_no_place():
    cells = Cells()
    cells.offered(1, 1.0)
    assert cells.offered(2, 3.0) == "contest"
    assert cells.elites == {1}
    assert cells.archive.incumbent(kernel(2).sha256) == kernel(1).sha256


def test_a_race_that_was_won_wins_the_place():
    cells = Cells()
    cells.offered(1, 1.0)
    assert cells.offered(2, 1.1, beside={1: ratio(1.1)}) == "replaced"
    assert cells.elites == {2}


@pytest.mark.parametrize("median", [1.005, 0.9, 1.5])
def test_a_race_that_was_not_won_does_not(median):
    cells = Cells()
    cells.offered(1, 1.0)
    assert cells.offered(2, 2.0, beside={1: ratio(median, width=0.6)}) == "refused"
    assert cells.elites == {1}


def test_who_measures_no_better_is_not_even_raced():
    cells = Cells()
    cells.offered(1, 1.5)
    assert cells.offered(2, 1.4) == "refused"


def test_a_contest_settles_it_later():
    cells = Cells()
    cells.offered(1, 1.0)
    assert cells.offered(2, 1.2) == "contest"
    assert cells.offered(2, 1.2, beside={1: ratio(1.2)}) == "replaced"


def test_without_races_the_better_timing_has_the_place():
    cells = Cells(races=False)
    cells.offered(1, 1.0)
    assert cells.offered(2, 1.001) == "replaced"


def test_untimed_kernels_are_ordered_by_the_compiler():
    cells = Cells("spills")
    for number, spilled in ((1, 64), (2, 0), (3, 128)):
        resources = KernelResources(kernel="k", architecture="sm_90", registers=64, spilled_bytes=spilled)
        verdict = verdict_of(kernel(number)).model_copy(
            update={"profile": Profile(rung="static", kernels=(resources,)), "timing": None}
        )
        assert cells.book.take(attempt_of(kernel(number), verdict))
        cells.archive.offer(kernel(number).sha256)
    assert cells.elites == {2}


def test_elites_are_placed_again_when_the_bins_are_cut_anew():
    cells = Cells("code")
    sizes = {1: 1000.0, 2: 2100.0, 3: 7000.0}
    for number, size in sizes.items():
        cells.offered(number, 1.0 + number / 10, code_bytes=size)
    assert cells.elites == {1, 2, 3}
    cells.offered(4, 1.0, code_bytes=512_000.0)  # 1 and 2 are in one bin now, with 3: it ends at 8,000
    assert cells.elites == {3, 4}
    assert cells.archive.cell_of(kernel(1).sha256) == cells.archive.cell_of(kernel(3).sha256)


def test_a_kernel_that_fails_when_judged_again_loses_its_place():
    cells = Cells()
    cells.offered(1, 1.0)
    assert not cells.judged(1, None, status=Status.INCORRECT_NUMERICAL)
    assert cells.archive.drop(kernel(1).sha256)
    assert cells.elites == set()
    assert kernel(1).sha256 not in cells.book


# ---------------------------------------------------------------------------------------------------- standings


def test_measurements_are_pooled_by_their_precision():
    exact, rough = Measure(0.10, 0.09, 0.11), Measure(0.50, 0.0, 1.0)
    both = pooled((exact, rough))
    assert 0.10 < both.value < 0.11
    assert both.high - both.low < exact.high - exact.low + 0.05
    alike = pooled((exact, Measure(0.12, 0.11, 0.13)))
    assert alike.value == pytest.approx(0.11)


def test_an_elite_is_measured_again_beside_its_challengers():
    cells = Cells()
    cells.offered(1, 1.50)
    before = cells.book[kernel(1).sha256].standing
    cells.offered(2, 1.20, beside={1: ratio(0.9)})  # so that the elite now measures 1.33
    member = cells.book[kernel(1).sha256]
    assert len(member.measures) in (1, 2)
    assert math.exp(member.standing.value) < math.exp(before.value)


def test_what_is_slower_now_stands_by_what_it_is_now():
    cells = Cells()
    cells.offered(1, 2.0)
    cells.judged(1, 1.2)
    assert math.exp(cells.book[kernel(1).sha256].standing.value) == pytest.approx(1.2)
    cells.judged(1, 1.21)
    assert math.exp(cells.book[kernel(1).sha256].standing.value) == pytest.approx(1.205, abs=0.002)
