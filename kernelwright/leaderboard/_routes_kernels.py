"""Pages of kernels: all the evidence, the source, differences, and drop-in modules."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import HTTPException, Path, Query, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.leaderboard import _kernels as kernels
from kernelwright.leaderboard._cells import path_of
from kernelwright.leaderboard._highlight import difference
from kernelwright.leaderboard._pages import Pages, get
from kernelwright.leaderboard._site import Site
from kernelwright.leaderboard._tables import Form, as_file
from kernelwright.records import Candidate
from kernelwright.store import StoredEvaluation

Sha = Annotated[str, Path(pattern=r"^[0-9a-f]{6,64}$", description="A kernel's hash, or its first digits.")]
Problem = Annotated[str | None, Query(max_length=300)]
Id = Annotated[str | None, Query(max_length=40, pattern=r"^[0-9A-Za-z]*$")]
REFERENCE = "reference"
_ARTIFACT_CHARS = 12_000
_EVALUATIONS = 40


class KernelPages(Pages):
    """Kernels and their evidence."""

    tag = "kernels"

    def _find(self, sha: str, problem: str | None, evaluation: str | None) -> tuple[Candidate, StoredEvaluation | None]:
        try:
            return kernels.find(self._site.reader.store, sha, problem, evaluation)
        except UsageError as error:
            raise HTTPException(404, error.message) from error

    @get("/evaluations/{evaluation}", summary="Redirects to an evaluation's kernel")
    def evaluation_page(self, evaluation: Annotated[str, Path(pattern=r"^[0-9A-Za-z]{1,40}$")]) -> RedirectResponse:
        try:
            found = self._site.reader.store.evaluation(evaluation)
        except UsageError as error:
            raise HTTPException(404, error.message) from error
        return RedirectResponse(
            f"{path_of('kernels', found.candidate.sha256)}?evaluation={evaluation}", status_code=303
        )

    @get("/kernels/{sha}/source.py", response_class=Response, summary="A kernel's source")
    def source(self, sha: Sha, problem: Problem = None, evaluation: Id = None) -> Response:
        candidate, _ = self._find(sha, problem, evaluation)
        return _download(candidate.source, f"kernel_{candidate.sha256[:12]}.py")

    @get("/kernels/{sha}/drop_in.py", response_class=Response, summary="A kernel as a drop-in module")
    def drop_in(self, sha: Sha, problem: Problem = None, evaluation: Id = None) -> Response:
        candidate, shown = self._find(sha, problem, evaluation)
        if shown is None or not shown.verdict.passed or shown.quarantined:
            raise HTTPException(409, "only a kernel that passed and was not withdrawn can be exported")
        from kernelwright.campaign import export_text

        store = self._site.reader.store
        try:
            text = export_text(store.problem(candidate.problem_id, version=shown.problem_version), shown.evaluation)
        except KernelwrightError as error:
            raise HTTPException(409, error.message) from error
        return _download(text, f"drop_in_{candidate.sha256[:12]}.py")

    @get("/kernels/{sha}/samples.{form}", response_class=Response, summary="Raw timing samples")
    def samples(self, sha: Sha, form: Form, problem: Problem = None, evaluation: Id = None) -> Response:
        candidate, shown = self._find(sha, problem, evaluation)
        rows = [] if shown is None else [sample.model_dump() for sample in shown.evaluation.samples]
        return as_file(form, rows, {"candidate": candidate.sha256, "evaluation": None if shown is None else shown.id})

    @get("/kernels/{sha}/profile.{form}", response_class=Response, summary="A kernel's profile")
    def profile(self, sha: Sha, form: Form, problem: Problem = None, evaluation: Id = None) -> Response:
        candidate, shown = self._find(sha, problem, evaluation)
        rows = [] if shown is None else kernels.metric_rows(shown.verdict.profile)
        return as_file(form, rows, {"candidate": candidate.sha256, "evaluation": None if shown is None else shown.id})

    @get("/kernels/{sha}/evaluations.{form}", response_class=Response, summary="All verdicts on a kernel")
    def evaluations(self, sha: Sha, form: Form, problem: Problem = None, evaluation: Id = None) -> Response:
        candidate, _ = self._find(sha, problem, evaluation)
        found = self._site.reader.store.evaluations(
            problem=candidate.problem_id, candidate=candidate.sha256, newest_first=True, limit=1000
        )
        return as_file(form, [_evaluation_row(entry) for entry in found], {"candidate": candidate.sha256})

    @get("/kernels/{sha}/verdict.json", response_class=Response, summary="A whole verdict")
    def verdict(self, sha: Sha, problem: Problem = None, evaluation: Id = None) -> Response:
        _, shown = self._find(sha, problem, evaluation)
        if shown is None:
            raise HTTPException(404, "this kernel was not judged yet")
        return Response(shown.verdict.model_dump_json(), media_type="application/json")

    @get("/kernels/{sha}/diff", response_class=Response, summary="The changes from another kernel")
    def diff(
        self,
        request: Request,
        sha: Sha,
        against: Annotated[str, Query(pattern=r"^(reference|[0-9a-f]{6,64})$")] = REFERENCE,
        problem: Problem = None,
        evaluation: Id = None,
    ) -> Response:
        candidate, _ = self._find(sha, problem, evaluation)
        name, before = _base(self._site, candidate, against)
        return self._site.page(
            request,
            "diff.html",
            section="problems",
            candidate=candidate,
            against=name,
            lines=difference(before, candidate.source),
        )

    @get("/kernels/{sha}", response_class=Response, summary="A kernel as a page")
    def kernel(self, request: Request, sha: Sha, problem: Problem = None, evaluation: Id = None) -> Response:
        candidate, shown = self._find(sha, problem, evaluation)
        store = self._site.reader.store
        drawing, ancestors = kernels.family(store, candidate)
        base_name, before = _base(self._site, candidate, ancestors[0].sha256 if ancestors else REFERENCE)
        others = store.evaluations(
            problem=candidate.problem_id, candidate=candidate.sha256, newest_first=True, limit=_EVALUATIONS
        )
        artifacts = {} if shown is None else shown.evaluation.artifacts
        return self._site.page(
            request,
            "kernel.html",
            section="problems",
            candidate=candidate,
            shown=shown,
            verdict=None if shown is None else shown.verdict,
            commands=kernels.commands(candidate, self._site.reader.path.name),
            timing_plot="" if shown is None else kernels.timing_plot(shown),
            roofline="" if shown is None else kernels.roofline_of(shown.verdict),
            bandwidth=None if shown is None else kernels.bandwidth_of(shown.verdict),
            metrics=[] if shown is None else kernels.metric_rows(shown.verdict.profile),
            lineage=drawing,
            ancestors=ancestors,
            against=base_name,
            diff=difference(before, candidate.source),
            lead=kernels.lead_of(store, candidate, shown),
            notes=store.notes(candidate=candidate.sha256)[-4:],
            artifacts={name: text[:_ARTIFACT_CHARS] for name, text in artifacts.items()},
            evaluations=others,
            query={"problem": candidate.problem_id} if shown is None else {"evaluation": shown.id},
        )


def _base(site: Site, candidate: Candidate, against: str) -> tuple[str, str]:
    if against == REFERENCE:
        return REFERENCE, site.reader.store.problem(candidate.problem_id).source
    try:
        other = site.reader.store.candidate(against, problem=candidate.problem_id)
    except UsageError:
        try:
            other = site.reader.store.candidate(against)
        except UsageError as error:
            raise HTTPException(404, error.message) from error
    return other.sha256, other.source


def _download(text: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return PlainTextResponse(text.encode("utf-8", "replace"), headers=headers)


def _evaluation_row(entry: StoredEvaluation) -> dict[str, Any]:
    verdict = entry.verdict
    timing = verdict.timing
    row: dict[str, Any] = {
        "evaluation": entry.id,
        "environment": verdict.environment,
        "device": entry.environment.device,
        "status": verdict.status.value,
        "stage": None if verdict.stage is None else verdict.stage.value,
        "reason": verdict.reason,
        "confirmed": timing is not None and timing.confirmed,
        "latency_ms": None if timing is None else timing.latency_ms.median,
        "quarantined": entry.quarantined,
        "run_id": entry.run_id,
        "created_at": entry.created_at,
    }
    for name, speedup in (timing.speedup if timing else {}).items():
        row |= {
            f"speedup_{name}": speedup.median,
            f"speedup_{name}_low": speedup.low,
            f"speedup_{name}_high": speedup.high,
        }
    return row
