"""Lint: every rule fires on a problem that has the weakness, and on no other."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from kernelwright.datasets import (
    LintFinding,
    LintRecords,
    _lint_worker,
    lint,
    lint_rules,
    lint_static,
    lint_summary,
    parse_problem,
    with_sizes,
)
from kernelwright.datasets._lint import LINT_ENTRY, lint_findings, lint_payload
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


def declared(source: str, **fields):
    """The problem with metadata fields set that its file does not have."""
    problem = parsed(source)
    known = {name: getattr(problem.meta, name) for name in type(problem.meta).model_fields}
    meta = SimpleNamespace(**{**known, "variants_for": problem.meta.variants_for, **fields})
    return problem.model_copy(update={"meta": meta})


def findings_of(problem) -> tuple[LintFinding, ...]:
    def call(entry, payload):
        assert entry == LINT_ENTRY
        return json.loads(json.dumps(_lint_worker.lint(json.loads(json.dumps(payload)))))

    return lint(problem, call)


def run(source: str) -> dict[str, LintFinding]:
    return {finding.rule: finding for finding in findings_of(parsed(source))}


@pytest.mark.parametrize(
    ("line", "rule", "message"),
    [
        ("import a_package_of_nobody.inner as inner", "needs-package", "needs the package a_package_of_nobody"),
        ("from a_package_of_nobody import inner", "needs-package", "needs the package a_package_of_nobody"),
        (
            "\ndef late():\n    import a_package_of_nobody",
            "needs-package",
            "a_package_of_nobody, which is not installed",
        ),
        (
            "NET = torch.hub.load_state_dict_from_url('https://nowhere')",
            "needs-weights",
            "load_state_dict_from_url fetches",
        ),
    ],
)
def test_what_cannot_run_on_this_machine_is_said_without_running_it(well, line, rule, message):
    (finding,) = [f for f in lint_static(parsed(f"{well}\n{line}\n")) if f.severity == "error"]
    assert finding.rule == rule
    assert message in finding.message


@pytest.mark.parametrize("caught", ["ImportError", "(OSError, ModuleNotFoundError)", "Exception"])
def test_an_import_that_may_fail_is_no_need(well, caught):
    guarded = f"try:\n    import a_package_of_nobody\nexcept {caught}:\n    a_package_of_nobody = None\n"
    assert "needs-package" not in lint_rules(lint_static(parsed(guarded + well)))
    for other in (
        guarded.replace(caught, "OSError"),
        guarded.replace("a_package_of_nobody = None", "raise"),
        guarded.replace("a_package_of_nobody = None", "import another_of_nobody"),
    ):
        assert "needs-package" in lint_rules(lint_static(parsed(other + well)))
    there = guarded.replace("import a_package_of_nobody", "import json")
    there = there.replace("a_package_of_nobody = None", "import another_of_nobody as json")
    assert "needs-package" not in lint_rules(lint_static(parsed(there + well)))


def test_packages_that_are_here_are_not_missed(well):
    lines = "import os.path\nimport numpy as np\nfrom torch.nn import functional\n"
    assert "needs-package" not in lint_rules(lint_static(parsed(lines + well)))


def test_a_sound_problem_is_clean(well):
    assert run(well) == {}


STATIC = [
    ("ROWS = 40\n", "ROWS = 40\nSHAPE = (ROWS, 2)\n", "frozen-constant", "error", "SHAPE = (ROWS"),
    ("def get_inputs():", "def get_inputs(rows=ROWS):", "frozen-constant", "error", "def get_inputs"),
    ('"x": {"fill": "normal", "low": "-inf", "high": "inf"}', "", "no-domains", "info", "PROBLEM = {"),
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


def test_a_variant_of_a_constant_that_the_source_lacks_is_unused(well):
    """No file is read so, but a store may hold a problem that was."""
    problem = parsed(well).model_copy(update={"source": "class Model: ...\n"})
    unused = [finding for finding in lint_static(problem) if finding.rule == "unused-constant"]
    assert [(finding.line, finding.message.split()[2]) for finding in unused] == [(None, "FEATURES,"), (None, "ROWS,")]


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
    ("return torch.relu(x * self.weight - 2)", "saturated", "warning"),
    ("return torch.sqrt(x * self.weight)", "non-finite", "warning"),
    ("return torch.tanh(x)", "unused-parameter", "warning"),
]


@pytest.mark.parametrize(("body", "rule", "severity"), DYNAMIC, ids=[case[1] for case in DYNAMIC])
def test_dynamic_rules(well, line_of, body, rule, severity):
    source = well.replace(BODY, body)
    finding = run(source)[rule]
    assert finding.severity == severity
    expected = "undefined_name" if rule == "invalid-reference" else "def forward"
    assert finding.line == line_of(source, expected)


REDUNDANT = [
    ("torch.softmax(s.unsqueeze(0), 0) + s", "_softmax works along a dimension of size 1", "warning"),
    ("s + s.unsqueeze(0).mean(0)", "mean works along a dimension of size 1", "warning"),
    ("s + s.unsqueeze(-1).max(-1).values", "max works along a dimension of size 1", "warning"),
    (
        "s + torch.nn.functional.layer_norm(s.unsqueeze(-1), (1,)).squeeze(-1)",
        "native_layer_norm works along",
        "warning",
    ),
    ("s + s.sum(1, keepdim=True).expand(40, 60).mean(1, keepdim=True)", "elements are all equal", "warning"),
    ("s.relu().relu() + s", "relu is applied twice in a row", "warning"),
    ("s.clamp(-1, 1).clamp(-1, 1) + s", "clamp is applied twice", "warning"),
    ("-(-s) * 2", "neg is undone", "warning"),
    ("torch.relu(torch.exp(s))", "relu changes nothing on ordinary inputs", "warning"),
    ("s * 1.0 - 3", "mul changes nothing", "warning"),
    ("(s + 0) * 3", "add changes nothing", "warning"),
    ("s.clamp(-50, 50) * 3", "clamp changes nothing on ordinary inputs", "info"),
    ("s + (s - s).exp()", "every value that sub computes is the same", "warning"),
    ("s + torch.arange(2400.0).view(40, 60).cumsum(1)", "cumsum computes a constant", "info"),
    ("s + [torch.sin(s), 0][1]", "the result of sin never reaches the output", "warning"),
    ("x.clone()", "equals an input", "warning"),
]


@pytest.mark.parametrize(("value", "message", "severity"), REDUNDANT, ids=[case[0] for case in REDUNDANT])
def test_work_that_can_be_left_out_is_named_with_its_line(well, line_of, value, message, severity):
    body = f"s = torch.tanh(x * self.weight)\n        return {value}"
    source = well.replace(BODY, body)
    found = [f for f in findings_of(parsed(source)) if f.rule == "redundant-work" and message.strip("_") in f.message]
    assert [finding.severity for finding in found] == [severity]
    assert found[0].line == line_of(source, "def forward" if "equals" in message else "        return")


NEEDED = [
    "torch.softmax(s, 0) + s",
    "s.relu() - (-s).relu() * 2",
    "s.clamp(-0.3, 0.3).clamp(-0.2, 0.2) * 2",
    "torch.relu(s).neg().relu_().add(s) if s.sum().item() > -1e9 else s",
    "s + torch.zeros_like(s).copy_(s.flip(0)).cos()",
    "(s.sort().values + s).argmax(1)",
    "torch.maximum(s, s.flip(0))",
    "s / ((s.square() + 1.0) + 1e-20)",
    "(torch.nn.functional.dropout(s, 0.5, self.training) + s).exp()",
]


@pytest.mark.parametrize("value", NEEDED)
def test_work_that_is_needed_is_not_reported(well, value):
    body = f"s = torch.tanh(x * self.weight)\n        return {value}"
    assert "redundant-work" not in {f.rule for f in findings_of(parsed(well.replace(BODY, body)))}


def test_running_statistics_are_work_that_counts(well):
    source = well.replace("self.weight = nn.Parameter(torch.ones(features))", "self.norm = nn.BatchNorm1d(features)")
    source = source.replace(BODY, "return self.norm(x)").replace('"category"', '"mode": "train", "category"')
    assert "redundant-work" not in run(source)


def test_work_on_tensors_without_memory_is_not_looked_at(well):
    source = well.replace(BODY, "return torch.tanh(x * self.weight).to_sparse().to_dense()")
    assert run(source)["untraced"].severity == "info"


RANDOM = "return torch.dropout(x * self.weight, 0.5, True)"


def test_declared_randomness_is_no_error(well):
    source = well.replace(BODY, RANDOM)
    assert {"random", "calls-random"} <= set(run(source))
    for kind in ("seeded", "distribution"):
        assert findings_of(declared(source, randomness=kind)) == ()


def test_randomness_must_be_what_was_declared(well):
    def rules(body, kind):
        return {f.rule: f.severity for f in findings_of(declared(well.replace(BODY, body), randomness=kind))}

    other_generator = "return torch.tanh(x * self.weight) + float(__import__('random').SystemRandom().random())"
    assert rules(BODY, "seeded") == {"not-random": "warning"}
    assert rules(other_generator, "seeded") == {"nondeterministic": "error"}
    assert rules(other_generator, "distribution") == {}


def test_of_a_problem_with_gradients_only_the_forward_is_looked_at(well):
    source = well.replace('"category"', '"backward": True, "category"')
    assert run(source)["forward-only"].severity == "info"
    assert set(run(source)) == {"forward-only"}


def test_a_summary_names_rules_worst_first(well):
    source = well.replace(BODY, "return torch.relu(torch.relu(torch.dropout(x, 0.5, True)))")
    assert lint_summary(findings_of(parsed(source))).startswith("error: random; warning: ")
    assert lint_summary(findings_of(parsed(well))) == ""
    assert lint_rules(findings_of(parsed(source)))[0] == "random"
    assert lint_rules(findings_of(parsed(well))) == ()


def test_an_input_without_influence_is_named(well):
    source = well.replace("def forward(self, x)", "def forward(self, x, y)").replace(BODY, TWO)
    source = source.replace("return [torch.randn(ROWS, FEATURES)]", "return [torch.randn(ROWS, FEATURES)] * 2")
    assert "input y" in run(source)["input-unused"].message


def test_an_output_whose_shape_depends_on_the_data_is_an_error(well):
    found = run(well.replace(BODY, "return x[x[:, 0] > 0] * 2"))["shape-of-data"]
    assert found.severity == "error"
    assert "depends on the values of the inputs" in found.message


def test_an_input_that_never_varies_is_perturbed(well):
    source = well.replace("def forward(self, x)", "def forward(self, x, keep)")
    source = source.replace(BODY, "return torch.tanh(x * self.weight).masked_fill(~keep, 3.0)")
    source = source.replace("return [torch.randn(ROWS, FEATURES)]", "return [torch.randn(ROWS, FEATURES), KEEP]")
    source += "\nKEEP = torch.ones(40, 60).tril().bool()\n"
    assert set(run(source)) == {"undeclared-input"}


def test_nondeterminism_is_told_from_randomness(well):
    source = well.replace(BODY, "self.calls = getattr(self, 'calls', 0) + 1\n        return x * self.calls")
    assert "nondeterministic" in run(source)


def test_the_reply_has_facts(well):
    reply = _lint_worker.lint(lint_payload(parsed(well)))
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


def test_a_claim_cannot_write_to_the_terminal():
    (finding,) = lint_findings(
        {"findings": [{"rule": "a-rule\x1b[2J\n", "severity": "error", "message": "one\n\x1b[1Atwo"}]}
    )
    assert (finding.rule, finding.message) == ("a-rule2", "one  [1Atwo")


# ------------------------------------------------------------------------------------------------------- records

CLAIM = {"rule": "tiny-output", "severity": "warning", "message": "small", "line": 3}


def claiming(*findings):
    """A worker that reports these findings."""
    return lambda entry, payload: {"findings": list(findings)}


def test_what_was_never_run_is_not_clean(tmp_path, well):
    problem, records = parsed(well), LintRecords(tmp_path)
    assert lint_static(problem) == ()
    assert lint_rules(records.known(problem)) == ("not-linted",)
    assert lint_summary(records.known(problem)) == "warning: not-linted"
    assert records.get(problem) is None


def test_what_a_run_found_is_known_afterwards(tmp_path, well):
    problem = parsed(well.replace(BODY, "return x + torch.rand(3)"))
    lint(problem, claiming(CLAIM), records=LintRecords(tmp_path))
    assert lint_rules(LintRecords(tmp_path).known(problem)) == ("calls-random", "tiny-output")
    lint(problem, claiming(), records=LintRecords(tmp_path))
    assert LintRecords(tmp_path).get(problem) == ()
    assert lint_rules(LintRecords(tmp_path).known(problem)) == ("calls-random",)


def test_what_was_run_in_other_sizes_is_known_and_its_duration_is_no_finding(tmp_path, well):
    problem, records = parsed(well), LintRecords(tmp_path)
    (sized,) = with_sizes([parsed(well + "\nROWS = 64\n")], {"ROWS": 8})
    asked = []
    brief = {"rule": "too-small", "severity": "warning", "message": "0.1 us"}

    def call(entry, payload):
        asked.append(payload["source"])
        return {"findings": [CLAIM, brief]}

    lint(problem, call, records=records, sized=sized)
    assert asked == [sized.source]
    found = {finding.rule: finding.message for finding in records.known(problem)}
    assert found == {"tiny-output": CLAIM["message"], "fitted-sizes": "it was run in fitted sizes (ROWS=8)"}
    lint(problem, call, records=records, sized=problem)
    assert [finding.rule for finding in records.get(problem)] == ["tiny-output", "too-small"]


def test_a_record_is_of_one_content_under_one_set_of_rules(tmp_path, well, monkeypatch):
    problem, records = parsed(well), LintRecords(tmp_path)
    lint(problem, claiming(), records=records)
    assert records.get(problem) == ()
    assert records.get(problem.model_copy(update={"id": "another/level1/name"})) == ()
    assert records.get(parsed(well + "\n")) is None
    assert records.get(problem, "gpu") is None
    monkeypatch.setattr("kernelwright.datasets._lint_records._rules", lambda: "others")
    assert records.get(problem) is None


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"findings": [{"rule": 1}]}', "[" * 100_000, "\xff"])
def test_a_damaged_record_counts_as_none(tmp_path, well, damage):
    problem, records = parsed(well), LintRecords(tmp_path)
    lint(problem, claiming(), records=records)
    (file,) = (tmp_path / "lint").iterdir()
    file.write_bytes(damage.encode("latin-1"))
    assert lint_rules(records.known(problem)) == ("not-linted",)


def test_a_folder_that_cannot_be_written_keeps_no_record(tmp_path, well):
    (tmp_path / "file").write_text("no folder")
    records = LintRecords(tmp_path / "file")
    assert lint(parsed(well), claiming(CLAIM), records=records)[0].rule == "tiny-output"
    assert records.get(parsed(well)) is None


def test_a_sum_that_begins_at_zero_is_no_redundant_work(well):
    source = well.replace("torch.tanh(x * self.weight)", "x.new_zeros(x.shape).add(torch.tanh(x * self.weight))")
    assert source != well
    assert "redundant-work" not in run(source)
