"""The page of refused kernels, with the rules and the evidence."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.responses import Response

from kernelwright.leaderboard._pages import Pages, get
from kernelwright.leaderboard._site import Site, given
from kernelwright.leaderboard._tables import Form, as_file

PAGE = 50
Text = Annotated[str | None, Query(max_length=200)]
_EVIDENCE_CHARS = 400


class QuarantinePages(Pages):
    """Refused kernels."""

    tag = "quarantine"

    @get("/quarantine", response_class=Response, summary="Refused kernels as a page")
    def quarantine(self, request: Request, rule: Text = None, problem: Text = None, before: Text = None) -> Response:
        store = self._site.reader.store
        asked = {"rule": rule or "", "problem": problem or "", "before": before or ""}
        return self._site.page(
            request,
            "quarantine.html",
            section="quarantine",
            rules=store.refusal_rules(),
            rows=_rows(self._site, rule, problem, before, PAGE),
            page_size=PAGE,
            asked=asked,
        )

    @get("/quarantine.{form}", response_class=Response, summary="Refused kernels")
    def quarantine_file(
        self,
        form: Form,
        rule: Text = None,
        problem: Text = None,
        before: Text = None,
        limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    ) -> Response:
        about = given(rule=rule, problem=problem, before=before)
        return as_file(form, _rows(self._site, rule, problem, before, limit), about)


def _rows(site: Site, rule: str | None, problem: str | None, before: str | None, limit: int) -> list[dict[str, Any]]:
    found = site.reader.store.refused(rule=rule or None, problem=problem or None, before=before or None, limit=limit)
    rows = []
    for row in found:
        findings = json.loads(row.pop("verdict_json")).get("findings") or []
        told = [
            {"rule": f["rule"], "where": f["where"], "evidence": f["evidence"][:_EVIDENCE_CHARS]}
            for f in findings
            if f["effect"] == "refuses"
        ]
        rows.append({**row, "findings": told})
    return rows
