"""KernelBench-style evaluation: its files, and the field's figures over many problems."""

from kernelwright.bench._kernelbench import (
    KernelBenchFigures,
    KernelBenchRun,
    Slot,
    kernelbench_figures,
    problem_name,
    read_baseline,
    read_results,
    read_run,
    results_json,
    write_run,
)
from kernelwright.bench._outcomes import Outcome
from kernelwright.bench._summary import Asked, Breakdown, Summary, break_down, summarise

__all__ = [
    "Asked",
    "Breakdown",
    "KernelBenchFigures",
    "KernelBenchRun",
    "Outcome",
    "Slot",
    "Summary",
    "break_down",
    "kernelbench_figures",
    "problem_name",
    "read_baseline",
    "read_results",
    "read_run",
    "results_json",
    "summarise",
    "write_run",
]
