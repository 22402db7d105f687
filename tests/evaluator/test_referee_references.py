"""References that cannot be used end as INVALID_REFERENCE with the line at fault, and nothing else suffers."""

from __future__ import annotations

import pytest
from referee_candidates import RIGHT
from referee_problem_text import HEAD, TAIL

from kernelwright.datasets import parse_problem
from kernelwright.errors import InvalidReferenceError
from kernelwright.records import Candidate, Status


def problem(forward: str, head: str = HEAD, tail: str = TAIL):
    source = head + f"        {forward}\n" + tail
    return parse_problem(source, id="test/level1/broken", suite="test", level=1, name="broken")


@pytest.mark.parametrize(
    ("made", "says", "line"),
    [
        (problem("return torch.rand_like(x)"), "random", None),
        (problem("y = None\n        return y"), "nothing", None),
        (problem("return x @ x @ x.nonsense"), "nonsense", 8),
        (problem("return x.add_(1)"), "writes its own inputs", None),
        (problem("return x", head="import not_a_package\n" + HEAD), "not_a_package", 1),
        (problem("return x", tail=TAIL.replace("torch.randn(8, 8)", "1 / 0")), "ZeroDivisionError", 12),
    ],
    ids=["random", "nothing", "raises", "in place", "missing package", "inputs"],
)
def test_unusable_references(referee, made, says, line):
    with pytest.raises(InvalidReferenceError) as caught:
        referee.open(made)
    assert says in str(caught.value)
    if line is not None:
        assert caught.value.data["line"] == line
    evaluation = referee.evaluate(Candidate(problem_id=made.id, source=RIGHT, backend="cpp"), made)
    assert evaluation.verdict.status is Status.INVALID_REFERENCE
    assert says in evaluation.verdict.reason
