"""KernelBench's own example kernels and adversarial kernels: what the referee says of each, beside what it should say.

    python benchmarks/kernelbench_examples.py CHECKOUT [--output FILE]

CHECKOUT is a checkout of KernelBench, which is read and not changed. Its five few-shot pairs and its Triton example are
right: each has to be PASSED, or UNCHECKED with a reason. Its three adversarial kernels must not be accepted. Nothing is
timed. Whole numbers above 128 in a reference's sizes become 128, since its kernels are emulated where there is no GPU.
Exit code 1 where a verdict differs.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

from kernelwright.config import Settings
from kernelwright.datasets import parse_problem
from kernelwright.evaluator import Check, Referee
from kernelwright.records import Backend, Candidate, Evaluation, Status

SHOTS, TESTS = "src/kernelbench/prompts/few_shot", "src/kernelbench/unit_tests/test_kernels"
SQUARE = "KernelBench/level1/1_Square_matrix_multiplication_.py"
LARGEST = 128
CALL_S = 120.0  # for a call in the emulator on a busy machine
RECORD = Path(__file__).parent / "results" / "kernelbench_examples.json"


class Example(NamedTuple):
    """A kernel of the checkout, its reference, and whether it is right."""

    kernel: str
    reference: str
    backend: Backend
    right: bool

    def agrees(self, evaluation: Evaluation) -> bool:
        """Whether a verdict is the one that it should have."""
        verdict = evaluation.verdict
        if not self.right:
            return not verdict.passed
        return verdict.passed or (verdict.status is Status.UNCHECKED and bool(verdict.reason))


EXAMPLES = (
    *(
        Example(f"{SHOTS}/model_new_ex_{name}.py", f"{SHOTS}/model_ex_{name}.py", "cuda", True)
        for name in ("add", "fuse_gelu", "mnist2", "tiled_matmul", "flash_attn")
    ),
    Example(
        "src/kernelbench/prompts/model_new_ex_add_triton.py",
        "src/kernelbench/prompts/model_ex_add.py",
        "triton",
        True,
    ),
    *(
        Example(f"{TESTS}/{name}_kernel.py", SQUARE, "cuda", False)
        for name in ("non_default_stream", "result_reuse", "zero_out")
    ),
)


def main() -> None:
    """Judge all examples, print the table, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="root of a checkout of KernelBench")
    parser.add_argument("--output", type=Path, default=RECORD, help="where the record goes (default: %(default)s)")
    arguments = parser.parse_args()
    lacking = [name for example in EXAMPLES for name in example[:2] if not (arguments.checkout / name).is_file()]
    if lacking:
        parser.error(f"{arguments.checkout} is no checkout of KernelBench: it has no {lacking[0]}")
    settings = Settings(call_timeout_s=CALL_S)
    rows = []
    print("| kernel | backend | should be | verdict | agrees | reason |\n|---|---|---|---|---|---|", flush=True)
    with Referee(settings) as referee:
        for example in EXAMPLES:
            rows.append(judged(referee, example, arguments.checkout))
            row = rows[-1]
            cells = (row["kernel"], row["backend"], row["should"], row["status"], row["agrees"], row["reason"])
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
        environment = referee.host.environment.model_dump(mode="json")
    record = {"environment": environment, "largest_size": LARGEST, "examples": rows}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")
    sys.exit(0 if all(row["agrees"] for row in rows) else 1)


def judged(referee: Referee, example: Example, checkout: Path) -> dict[str, object]:
    """One row: what the referee says of an example."""
    started, name = time.monotonic(), Path(example.kernel).stem
    source = smaller((checkout / example.reference).read_text(encoding="utf-8"))
    problem = parse_problem(source, id=f"kernelbench-examples/{name}", suite="kernelbench-examples", level=0, name=name)
    text = (checkout / example.kernel).read_text(encoding="utf-8")
    candidate = Candidate(problem_id=problem.id, source=text, backend=example.backend)
    evaluation = referee.evaluate(candidate, problem, depth=Check())
    verdict = evaluation.verdict
    return {
        "kernel": name,
        "backend": example.backend,
        "should": "PASSED or UNCHECKED" if example.right else "not accepted",
        "status": verdict.status.value,
        "stage": None if verdict.stage is None else verdict.stage.value,
        "label": verdict.own_kernel_label,
        "reason": verdict.reason,
        "agrees": example.agrees(evaluation),
        "findings": [finding.rule for finding in verdict.findings],
        "seconds": round(time.monotonic() - started, 1),
    }


def smaller(source: str) -> str:
    """A reference's text whose sizes, in constants of the file and in ``get_inputs``, are at most :data:`LARGEST`."""
    tree = ast.parse(source)
    sized = [node for node in tree.body if isinstance(node, ast.Assign) or getattr(node, "name", "") == "get_inputs"]
    lines = [line.encode() for line in source.splitlines(keepends=True)]
    numbers = [n for node in sized for n in ast.walk(node) if isinstance(n, ast.Constant) and type(n.value) is int]
    for number in sorted(numbers, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        if number.value > LARGEST and number.end_col_offset is not None:
            line = lines[number.lineno - 1]
            head, tail = line[: number.col_offset], line[number.end_col_offset :]
            lines[number.lineno - 1] = head + str(LARGEST).encode() + tail
    return b"".join(lines).decode()


if __name__ == "__main__":
    main()
