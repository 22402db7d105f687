"""KernelBench-style evaluation: its files, and the field's figures over many problems."""

from kernelwright.bench._claims import report_of_claims
from kernelwright.bench._dataset import write_dataset
from kernelwright.bench._exchange import (
    Imported,
    baselines_json,
    claims_of_bench,
    reference_samples,
    runs_of_bench,
    samples_of_run,
    submission_json,
)
from kernelwright.bench._flashinfer import write_flashinfer
from kernelwright.bench._imports import Form, form_of, samples_of_rows, samples_of_solutions, samples_of_submission
from kernelwright.bench._kernelbench import KernelBenchRun, read_baseline, read_run, write_run
from kernelwright.bench._report import BenchReport, html_of, markdown_of, report_of
from kernelwright.bench._stored import StoredBench, load_bench

__all__ = [
    "BenchReport",
    "Form",
    "Imported",
    "KernelBenchRun",
    "StoredBench",
    "baselines_json",
    "claims_of_bench",
    "form_of",
    "html_of",
    "load_bench",
    "markdown_of",
    "read_baseline",
    "read_run",
    "reference_samples",
    "report_of",
    "report_of_claims",
    "runs_of_bench",
    "samples_of_rows",
    "samples_of_run",
    "samples_of_solutions",
    "samples_of_submission",
    "submission_json",
    "write_dataset",
    "write_flashinfer",
    "write_run",
]
