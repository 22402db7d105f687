"""Runs a candidate in a process by itself, for tools that observe a whole process: profilers and sanitizers.

It runs in a sandbox of its own, after the candidate has passed, on the problem's own inputs. Its output does not count.
Start it as ``python -m kernelwright.evaluator.worker.program /in/job.json``, with the files of :func:`job_files` in the
same folder.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODULE = "kernelwright.evaluator.worker.program"
JOB = "/in/job.json"
_SEED = 1


def job_files(
    source: str,
    problem: str,
    variant: Mapping[str, Any],
    products: Mapping[str, bytes],
    *,
    mode: str,
    device: str,
    calls: int,
) -> dict[str, bytes]:
    """The files that are needed under /in.

    Args:
        source: the candidate's text, knobs applied. problem: the problem's text; variant: settings of its constants.
        products: the built libraries, by the key of each request.
        mode: ``eval`` or ``train``. device: torch's name of it. calls: number of forwards.
    """
    job = {"variant": dict(variant), "mode": mode, "device": device, "calls": calls}
    files = {"job.json": json.dumps(job), "candidate.py": source, "problem.py": problem}
    built = {f"{key}.so": product for key, product in products.items()}
    return {name: text.encode() for name, text in files.items()} | built


def main(job_path: str) -> None:
    """Load the candidate, build nothing, call it a few times."""
    import torch

    from kernelwright import inline
    from kernelwright.datasets import runtime as _runtime
    from kernelwright.evaluator.worker.loading import load_candidate

    folder = Path(job_path).parent
    job = json.loads(Path(job_path).read_text())
    reference = _runtime.load_reference((folder / "problem.py").read_text(), job["variant"])
    device = torch.device(job["device"])
    init, inputs = _runtime.make_init_inputs(reference, _SEED), _runtime.make_inputs(reference, _SEED)
    placed = [value.to(device) if isinstance(value, torch.Tensor) else value for value in inputs]

    def product(request: inline.BuildRequest) -> str:
        return str(folder / f"{request.key}.so")

    inline.set_product_provider(product)
    inline.patch_load_inline(product)
    model = load_candidate((folder / "candidate.py").read_text()).ModelNew(*init).to(device)
    model.train(job["mode"] == "train")
    with torch.no_grad():
        for _ in range(job["calls"]):
            model(*placed)
            if device.type == "cuda":
                torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1])
