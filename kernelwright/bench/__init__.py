"""KernelBench-style evaluation: its files, and the field's figures over many problems."""

from kernelwright.bench._claims import report_of_claims
from kernelwright.bench._dataset import write_dataset
from kernelwright.bench._exchange import (
    Imported,
    baselines_json,
    claims_of_bench,
    reference_samples,
    rows_of_bench,
    runs_of_bench,
    samples_of_run,
    submission_json,
)
from kernelwright.bench._flashinfer import write_flashinfer
from kernelwright.bench._imports import (
    FORMS,
    Form,
    form_of,
    samples_of_rows,
    samples_of_solutions,
    samples_of_submission,
)
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
from kernelwright.bench._report import BenchReport, PlotOf, TableOf, html_of, markdown_of, report_of
from kernelwright.bench._stored import JudgedSample, StoredBench, load_bench
from kernelwright.bench._summary import Asked, Breakdown, Summary, break_down, summarise

__all__ = [
    "FORMS",
    "Asked",
    "BenchReport",
    "Breakdown",
    "Form",
    "Imported",
    "JudgedSample",
    "KernelBenchFigures",
    "KernelBenchRun",
    "Outcome",
    "PlotOf",
    "Slot",
    "StoredBench",
    "Summary",
    "TableOf",
    "baselines_json",
    "break_down",
    "claims_of_bench",
    "form_of",
    "html_of",
    "kernelbench_figures",
    "load_bench",
    "markdown_of",
    "problem_name",
    "read_baseline",
    "read_results",
    "read_run",
    "reference_samples",
    "report_of",
    "report_of_claims",
    "results_json",
    "rows_of_bench",
    "runs_of_bench",
    "samples_of_rows",
    "samples_of_run",
    "samples_of_solutions",
    "samples_of_submission",
    "submission_json",
    "summarise",
    "write_dataset",
    "write_flashinfer",
    "write_run",
]
