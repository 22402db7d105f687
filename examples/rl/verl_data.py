"""Writes the data set that verl reads: ``python examples/rl/verl_data.py train.parquet PROBLEM...``."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelwright.rl.adapters.trl import rows
from kernelwright.rl.adapters.verl import DATA_SOURCE


def write(problems: list[str], backend: str, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = [
        {
            "data_source": DATA_SOURCE,
            "prompt": row["prompt"],
            "ability": "kernel",
            "reward_model": {"style": "rule", "ground_truth": row["problem"]},
            "extra_info": {"index": index, "backend": row["backend"]},
        }
        for index, row in enumerate(rows(problems, backend))
    ]
    pq.write_table(pa.Table.from_pylist(made), path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("problems", nargs="+")
    parser.add_argument("--backend", choices=["cpp", "triton", "cuda"], default="cpp")
    asked = parser.parse_args()
    write(asked.problems, asked.backend, asked.path)
