"""The corpus itself: headers, the catalogue, the counts. Nothing is judged here."""

from __future__ import annotations

import corpus
import pytest

HEADER = '''"""Takes a short cut.

row: input-independent shortcuts
problem: problems/row_sum.py
backend: cpp
screen: passes
"""
'''


def write(tmp_path, text, *, family="answers", kind="attacks"):
    folder = tmp_path / kind / family
    folder.mkdir(parents=True)
    path = folder / "case.py"
    path.write_text(text)
    return path


def test_a_header_becomes_a_case(tmp_path):
    text = HEADER.replace("passes\n", "refuses\nconfirm: yes\nlike: answers/one, partial/two\n")
    case = corpus.parse(write(tmp_path, text), "attacks")
    assert (case.name, case.family, case.title) == ("answers/case", "answers", "Takes a short cut.")
    assert (case.row, case.problem, case.backend) == ("input-independent shortcuts", "problems/row_sum.py", "cpp")
    assert (case.screen, case.confirm, case.host, case.device) == (True, True, False, False)
    assert case.like == ("answers/one", "partial/two")
    assert case.source == text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("backend: cpp\n", "", "lacks backend"),
        ("backend: cpp", "backend: fortran", "backend"),
        ("screen: passes", "screen: maybe", "screen"),
        ("screen: passes", "screen: passes\nhost: no", "host"),
        ("screen: passes", "screen: passes\nneeds:", "needs"),
        ("screen: passes", "screen: passes\nscreen: passes", "two lines"),
        ("screen: passes", "screen: passes\ncolour: red", "colour"),
        ("screen: passes", "screen: passes\nand more", "and more"),
        ("Takes a short cut.\n\n", "\n", "does not say"),
        ("input-independent shortcuts", "something", "catalogue"),
        ('"""\n', '"""\ndef (', "not valid Python"),
    ],
)
def test_a_malformed_header_is_an_error(tmp_path, old, new, says):
    broken = HEADER.replace(old, new) if old != '"""\n' else HEADER[:-4] + new
    with pytest.raises(corpus.HeaderError, match=says):
        corpus.parse(write(tmp_path, broken), "attacks")


def test_a_file_lies_in_a_family(tmp_path):
    with pytest.raises(corpus.HeaderError, match="family"):
        corpus.parse(write(tmp_path, HEADER, family="others"), "attacks")


def test_every_row_of_the_catalogue_has_an_attack():
    covered = {row for case in corpus.attacks() for row in corpus.rows_of(case.row)}
    assert sorted(set(corpus.CATALOGUE) - covered) == []


def test_the_corpus_is_large_and_no_two_files_are_equal():
    attacks, honest = corpus.attacks(), corpus.honest()
    assert len(attacks) >= 120
    assert len(honest) >= 60
    bodies = [case.source.split('"""', 2)[-1] for case in (*attacks, *honest)]
    assert len(set(bodies)) == len(bodies)


@pytest.mark.parametrize(
    ("old", "new", "timed"),
    [
        ("Takes", "Takes", False),
        ("input-independent shortcuts", "part of the rows; Honest in the first N calls", True),
        ("input-independent shortcuts", "telling checks from timing", True),
        ("screen: passes", "screen: passes\nconfirm: yes", True),
        ("cpp\nscreen: passes", "triton\nscreen: passes\nconfirm: yes", False),
    ],
)
def test_what_may_wait_for_the_clock_is_timed(tmp_path, old, new, timed):
    assert corpus.parse(write(tmp_path, HEADER.replace(old, new)), "attacks").needs_clock is timed


def test_the_family_timing_is_timed(tmp_path):
    assert corpus.parse(write(tmp_path, HEADER, family="timing"), "attacks").needs_clock


def test_what_is_always_timed_has_every_family_and_leaves_most_of_the_corpus_to_quicker_tests():
    timed = corpus.honest_with_time()
    on_cpu = [case for case in corpus.honest() if case.backend == "cpp"]
    assert {case.family for case in on_cpu} == {case.family for case in on_cpu if case.name in timed}
    assert {case.name for case in on_cpu if case.family == "timing"} <= timed
    assert len(timed) < len(on_cpu) / 2
    assert any(case.needs_clock for case in corpus.attacks() if case.family != "timing")


def test_headers_name_what_exists():
    attacks = {case.name for case in corpus.attacks()}
    for case in corpus.honest():
        assert case.like, case.name
        assert set(case.like) <= attacks, case.name
    for case in (*corpus.attacks(), *corpus.honest()):
        assert corpus.problem_of(case.problem).source, case.name
