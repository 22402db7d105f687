"""Setting knobs in a candidate's text."""

from __future__ import annotations

import pytest

from kernelwright.inline import apply_knobs

SOURCE = '''KNOBS = {
    "BLOCK": [64, 128],
    "FAST": [True, False],
    "NAME": ["a", "b"],
}
BLOCK = (
    64  # é: a comment
)
NAME: str = "a"
TEXT = r"""
BLOCK = 1
"""

def f():
    BLOCK = 3
    return BLOCK
'''


def run(text):
    space = {}
    exec(text, space)
    return space


def test_assigned_knobs_are_replaced_and_nothing_else():
    text = apply_knobs(SOURCE, {"BLOCK": 128, "NAME": "b"})
    space = run(text)
    assert (space["BLOCK"], space["NAME"], space["f"]()) == (128, "b", 3)
    assert "BLOCK = 1\n" in text
    expected = SOURCE.replace("    64  # é", "    128  # é").replace('str = "a"', "str = 'b'")
    assert text == expected.replace("}\nBLOCK", "}\nFAST = True\nBLOCK")


def test_a_declared_knob_without_a_value_is_assigned_after_the_declaration():
    assert run(apply_knobs(SOURCE, {"FAST": False}))["FAST"] is False
    assert run(apply_knobs('KNOBS = {"A": [1, 2]}', {"A": 2}))["A"] == 2


def test_a_declared_knob_that_nothing_sets_takes_its_first_value():
    assert run(apply_knobs(SOURCE, {}))["FAST"] is True
    assert run(apply_knobs(SOURCE, {"BLOCK": 128}))["FAST"] is True


def test_without_knobs_the_text_stays():
    assert apply_knobs("A = 1\n", {}) == "A = 1\n"
    assert apply_knobs("KNOBS = {'A': [1, 2]}\nA = 2\n", {}) == "KNOBS = {'A': [1, 2]}\nA = 2\n"


def test_an_unknown_knob_names_those_there_are():
    with pytest.raises(ValueError, match="WIDTH; it has BLOCK, FAST, NAME"):
        apply_knobs(SOURCE, {"WIDTH": 1})
