"""The Python interface: judge one candidate, or replace a live module by its fastest verified drop-in."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelwright.campaign._results import CampaignEvent
from kernelwright.campaign.campaign import Campaign
from kernelwright.campaign.recipe import with_recipe
from kernelwright.campaign.variants import at_variant
from kernelwright.config import CAPTURED, Settings
from kernelwright.errors import UsageError
from kernelwright.evaluator import Check, Confirm, Search
from kernelwright.files import write_for_user
from kernelwright.pool import OpenReferee, open_local_referee
from kernelwright.records import Backend, Candidate, Evaluation, KnobValue, Problem, sha256_text

if TYPE_CHECKING:
    import torch

    from kernelwright.store import Store


def read_candidate(
    candidate: str | Path,
    problem: Problem,
    *,
    backend: Backend = "cpp",
    knobs: Mapping[str, KnobValue] | None = None,
) -> Candidate:
    """A candidate from a file's path or from source text. A string with a line break is source text.

    Raises:
        UsageError: the file cannot be read, or is not UTF-8 text.
    """
    source = candidate if isinstance(candidate, str) and "\n" in candidate else _read(Path(candidate))
    return Candidate(
        problem_id=problem.id,
        source=source,
        backend=backend,
        knobs=dict(knobs or {}),
        operator="given",
        author="user",
    )


def language_of(candidate: Candidate) -> Backend:
    """The backend of the kernels in a candidate's file. The given backend stays if the file has kernels for it."""
    from kernelwright.evaluator import kernel_backends

    built = kernel_backends(candidate.source)
    if not built or candidate.backend in built:
        return candidate.backend
    return "triton" if "triton" in built else "cuda" if "cuda" in built else "cpp"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError(f"no candidate file {path}", hint="give the path of a Python file with ModelNew") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the candidate file {path}: {error}", hint="give a readable text file") from error


def evaluate(
    candidate: str | Path,
    problem: str | Problem,
    *,
    settings: Settings | None = None,
    backend: Backend | None = None,
    knobs: Mapping[str, KnobValue] | None = None,
    control: bool = False,
    time: bool = True,
    confirm: bool = False,
    variant: str | int | None = None,
    store: Store | None = None,
    open_referee: OpenReferee = open_local_referee,
    on_stage: Callable[[str], None] | None = None,
) -> Evaluation:
    """Judge one candidate: built, checked and timed in the sandbox.

    Args:
        candidate: a file's path, or source text with ``class ModelNew``.
        problem: ``suite/level/name``, a path to a reference file, or a Problem.
        settings: default: the user's configuration.
        backend: default: the settings', or the language of the file's kernels if the settings leave it open.
        knobs: module globals to set in the candidate.
        control: the file is a control (the reference itself, a library call), which needs no kernel of its own.
        time: False stops after the check.
        confirm: time in fresh processes, as for a published result.
        variant: the shape variant to time, by its number or by the sizes it sets (``"ROWS=7"``); the others are
            checked as well. Default: the variant in the problem's name, or the first one.
        store: keeps the evaluation, and holds the problem's archive of input generators. With None, nothing is kept
            and no archive is used.

    Raises:
        UsageError: an unknown problem or variant, or an unreadable file.
        InvalidReferenceError: the problem's file breaks the contract. A reference that fails when it is run gives
            status INVALID_REFERENCE instead.
        MachineError, MissingToolError: the candidate cannot be judged here.
    """
    from kernelwright.datasets import find_problem

    settings = settings or Settings.load()
    found = problem if isinstance(problem, Problem) else find_problem(problem, settings.suite_dirs)
    given = read_candidate(candidate, found, backend=backend or settings.backend, knobs=knobs)
    if backend is None and settings.origin("backend") == "default":
        given = given.model_copy(update={"backend": language_of(given)})
    found = at_variant(found, variant, given.backend, settings)
    given = given.model_copy(update={"problem_id": found.id})
    with open_referee(settings) as referee:
        evaluation = referee.evaluate(
            given,
            found,
            Check() if not time else Confirm() if confirm else Search(),
            baselines=settings.baselines,
            control=control,
            on_stage=on_stage,
            archive=() if store is None else store.archive(found),
        )
    if store is not None:
        store.record_problem(found)
        store.record_evaluation(evaluation, run_id=None)
    return evaluation


def optimize(
    model: torch.nn.Module,
    example_inputs: Sequence[torch.Tensor],
    *,
    name: str | None = None,
    settings: Settings | None = None,
    tell: Callable[[CampaignEvent], None] = lambda event: None,
    open_referee: OpenReferee = open_local_referee,
    **options: Any,
) -> torch.nn.Module:
    """Optimize a module like :func:`kernelwright.optimize`, but without showing progress.

    Args:
        model, example_inputs, options: as in :func:`kernelwright.optimize`.
        name: name of the problem in the store; default: the class's name.
        settings: default: the user's configuration.
        tell: called with each event.
        open_referee: opens the referee.
    """
    from kernelwright.datasets import parse_problem, problem_from_module
    from kernelwright.store import Store

    settings = with_recipe((settings or Settings.load()).with_values("argument", **options))
    name = name or type(model).__name__
    source, names = problem_from_module(model, tuple(example_inputs), name)
    problem = parse_problem(source, id=f"{CAPTURED}/level0/{name}", suite=CAPTURED, level=0, name=name)
    with Store.open(settings.store) as store:
        result = Campaign(settings, store, open_referee=open_referee, tell=tell).run([problem])
        row = result.rows[0]
        speedup = row.speedup.get(settings.baselines[0])
        if row.evaluation is None or speedup is None or not speedup.faster:
            why = row.reason if row.evaluation is None else row.denied or row.too_small or "none beat it"
            warnings.warn(f"no faster kernel for {name}: {why}", stacklevel=3)  # where kernelwright.optimize was called
            return model
        text = export_text(problem, store.evaluation(row.evaluation).evaluation)
    return load_drop_in(text, model, settings.cache_dir, names)


def export_text(problem: Problem, evaluation: Evaluation) -> str:
    """The drop-in module file of a judged candidate, as text."""
    from kernelwright.export import export_module

    return export_module(problem, evaluation.candidate, verdict=evaluation.verdict, environment=evaluation.environment)


def load_drop_in(
    text: str, model: torch.nn.Module, cache_dir: Path, names: Mapping[str, str] | None = None
) -> torch.nn.Module:
    """Import an exported file into this process and give its drop-in ``model``'s weights.

    The file is kept under ``cache_dir`` by the hash of its text, so that tracebacks can show its lines.

    Args:
        text: the exported file. It runs with this process's rights from now on.
        model: the drop-in shares its parameters and buffers.
        cache_dir: where the file is kept.
        names: maps names in the drop-in's state to names in the model's, if they differ.
    """
    path = cache_dir / "drop-ins" / f"kernel_{sha256_text(text)[:16]}.py"
    write_for_user(path, text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise AssertionError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drop_in: torch.nn.Module = module.from_reference(model, names=names)
    return drop_in
