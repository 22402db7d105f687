"""Lint: every rule fires on a problem that has the weakness, and on no other."""

from __future__ import annotations

import json

import pytest

from kernelwright.datasets import (
    LINT_ENTRY,
    LintFinding,
    _runtime,
    lint,
    lint_findings,
    lint_payload,
    lint_static,
    parse_problem,
)
from kernelwright.errors import MachineError

LARGE = {"ROWS = 4": "ROWS = 40", '"ROWS": 4, "FEATURES": 6': '"ROWS": 40, "FEATURES": 60'}


@pytest.fixture
def well(good):
    """A problem that is large enough to have no weakness at all."""
    for old, new in LARGE.items():
        good = good.replace(old, new)
    return good.replace("return x * self.weight", "return torch.tanh(x * self.weight).exp() - x")


def parsed(source: str):
    return parse_problem(source, id="s/level1/p", suite="s", level=1, name="p")


def run(source: str) -> dict[str, LintFinding]:
    def call(entry, payload):
        assert entry == LINT_ENTRY
        return json.loads(json.dumps(_runtime.lint_dynamic(json.loads(json.dumps(payload)))))

    return {finding.rule: finding for finding in lint(parsed(source), call)}


def test_a_sound_problem_is_clean(well):
    assert run(well) == {}


STATIC = [
    ("ROWS = 40\n", "ROWS = 40\nSHAPE = (ROWS, 2)\n", "frozen-constant", "error", "SHAPE = (ROWS"),
    ("def get_inputs():", "def get_inputs(rows=ROWS):", "frozen-constant", "error", "def get_inputs"),
    ('"x": {"fill": "normal", "low": "-inf", "high": "inf"}', "", "undeclared-input", "warning", "def forward"),
    ("def forward(self, x)", "def forward(self, x, y=None)", "unused-input", "error", "def forward"),
    ('            {"ROWS": 3, "FEATURES": 5},\n', "", "single-variant", "info", "PROBLEM"),
    ('{"ROWS": 3, "FEATURES": 5}', '{"ROWS": 40, "FEATURES": 60}', "repeated-variant", "warning", "PROBLEM"),
    ("torch.randn(ROWS, FEATURES)", "torch.randn(40, FEATURES)", "unused-constant", "warning", "ROWS = 40"),
    ("exp() - x", "exp() - x * torch.rand_like(x)", "calls-random", "warning", "rand_like"),
    ('"category"', '"heavy_ops": ["mm"], "category"', "heavy-op-name", "warning", None),
    ("PROBLEM =", "METADATA =", "no-metadata", "info", None),
]


@pytest.mark.parametrize(("old", "new", "rule", "severity", "at"), STATIC, ids=[case[2] for case in STATIC])
def test_static_rules(well, line_of, old, new, rule, severity, at):
    assert lint_static(parsed(well)) == ()
    assert old in well
    source = well.replace(old, new)
    found = [finding for finding in lint_static(parsed(source)) if finding.rule == rule]
    assert found
    assert found[0].severity == severity
    assert found[0].line == (at and line_of(source, at))


def test_what_a_lambda_reads_is_not_frozen(well):
    source = well.replace("ROWS = 40\n", "ROWS = 40\nshape = lambda: (ROWS, 2)\n")
    assert lint_static(parsed(source)) == ()


BODY = "return torch.tanh(x * self.weight).exp() - x"
TWO = BODY.replace("- x", "- x + 0 * y")
DYNAMIC = [
    ("return torch.zeros(3) + 0 * x.mean()", "constant-output", "error"),
    ("return x.mean() * 0 + torch.full((3, 3), 2.0)", "constant-output", "error"),
    ("return torch.dropout(x, 0.5, True)", "random", "error"),
    ("return x * self.weight / 0", "non-finite", "warning"),
    ("return torch.tanh(x) * 1e-5", "tiny-output", "warning"),
    ("return torch.tanh(x) * 1e-4 + 1", "tiny-range", "warning"),
    ("return x.view(-1)", "output-alias", "warning"),
    ("x.add_(self.weight)\n        return torch.tanh(x) + x * 2", "mutates-input", "info"),
    ("return x[:0] * 2", "empty-output", "error"),
    ("return x + undefined_name", "invalid-reference", "error"),
]


@pytest.mark.parametrize(("body", "rule", "severity"), DYNAMIC, ids=[case[1] for case in DYNAMIC])
def test_dynamic_rules(well, line_of, body, rule, severity):
    source = well.replace(BODY, body)
    finding = run(source)[rule]
    assert finding.severity == severity
    expected = "undefined_name" if rule == "invalid-reference" else "def forward"
    assert finding.line == line_of(source, expected)


def test_an_input_without_influence_is_named(well):
    source = well.replace("def forward(self, x)", "def forward(self, x, y)").replace(BODY, TWO)
    source = source.replace("return [torch.randn(ROWS, FEATURES)]", "return [torch.randn(ROWS, FEATURES)] * 2")
    assert "input y" in run(source)["input-unused"].message


def test_an_input_that_never_varies_is_perturbed(well):
    source = well.replace("def forward(self, x)", "def forward(self, x, keep)")
    source = source.replace(BODY, "return torch.tanh(x).masked_fill(~keep, 3.0)")
    source = source.replace("return [torch.randn(ROWS, FEATURES)]", "return [torch.randn(ROWS, FEATURES), KEEP]")
    source += "\nKEEP = torch.ones(40, 60).tril().bool()\n"
    assert set(run(source)) == {"undeclared-input"}


def test_nondeterminism_is_told_from_randomness(well):
    source = well.replace(BODY, "self.calls = getattr(self, 'calls', 0) + 1\n        return x * self.calls")
    assert "nondeterministic" in run(source)


def test_the_reply_has_facts(well):
    reply = _runtime.lint_dynamic(lint_payload(parsed(well)))
    assert reply["facts"]["input_bytes"] == reply["facts"]["output_bytes"] == 40 * 60 * 4
    assert reply["facts"]["output_shapes"] == [[40, 60]]
    assert reply["facts"]["call_us"] > 0


def test_a_call_that_is_too_short_is_reported(well, monkeypatch):
    monkeypatch.setattr("kernelwright.datasets._lint_worker.MIN_CALL_US", 1e9)
    assert run(well)["too-small"].severity == "warning"


def test_a_malformed_reply_is_refused_and_a_long_one_cut():
    with pytest.raises(MachineError):
        lint_findings({})
    with pytest.raises(MachineError):
        lint_findings({"findings": [{"rule": "x", "severity": "fatal", "message": ""}]})
    long = {"rule": "r" * 999, "severity": "info", "message": "m" * 9999, "line": None}
    found = lint_findings({"findings": [long] * 1000})
    assert (len(found), len(found[0].rule), len(found[0].message)) == (64, 60, 500)
