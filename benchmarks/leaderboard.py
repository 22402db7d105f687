"""How fast the leaderboard's pages are over a store, and how they hold with many readers.

    python benchmarks/leaderboard_store.py STORE --evaluations 1000000
    python benchmarks/leaderboard.py pages STORE
    python benchmarks/leaderboard.py readers STORE --readers 200 --seconds 30
    python benchmarks/leaderboard.py paint STORE

All start the real server in a process of its own and speak with it over loopback. ``pages`` asks for addresses that
differ, so that no answer comes from the cache; ``readers`` lets each reader follow links with a pause between.
``paint`` opens each kind of page in a browser with nothing in its cache (``pip install -e '.[browser]'`` and Debian's
chromium): milliseconds until the first content is painted, and bytes over the wire. Figures are added to the file of
``--out``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import httpx2 as httpx

from kernelwright.evaluator import environment
from kernelwright.store import Store

_KINDS = ("board", "entrant", "problems", "problem", "archive", "kernel", "diff", "runs", "run", "live", "compare",
          "transcript", "quarantine", "json", "csv")  # fmt: skip


class Addresses:
    """Addresses of pages, drawn at random from what a store has."""

    def __init__(self, path: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        with Store.open(path, readonly=True) as store:
            self._places = store.board_places()
            self._problems = store.problems_in_use()
            self._runs = [run.id for run in store.runs(400)]
            last = store.query("SELECT max(rowid) AS n FROM evaluations")[0]["n"]
            wanted = [self._rng.randrange(1, last + 1) for _ in range(3000)]
            rows = store.query(
                "SELECT evaluations.id, candidates.sha256, candidates.problem FROM evaluations "
                "JOIN candidates ON candidates.id = candidate_id "
                f"WHERE evaluations.rowid IN ({', '.join(map(str, wanted))})"
            )
            self._kernels = [(row["sha256"], row["problem"], row["id"]) for row in rows]
            self._entrants = store.query("SELECT DISTINCT author, recipe FROM improvements")
            self._rules = [row["rule"] for row in store.refusal_rules()]

    def one(self, kind: str) -> str:
        """An address of a kind."""
        rng = self._rng
        place = rng.choice(self._places)
        where = {"environment": place["environment"], "baseline": place["baseline"]}
        problem = rng.choice(self._problems)
        name = quote(problem["problem"])
        sha, of, evaluation = rng.choice(self._kernels)
        run = rng.choice(self._runs)
        nonce = {"x": rng.randrange(10**9)}  # no page knows it: an address that was never asked for
        if kind == "board":
            narrowed = {"category": problem["category"]} if rng.random() < 0.4 else {"level": problem["level"]}
            until = {"until": f"2026-{rng.randrange(1, 12):02d}-01"} if rng.random() < 0.3 else {}
            return "/?" + urlencode({**where, **(narrowed if rng.random() < 0.5 else {}), **until, **nonce})
        if kind == "entrant":
            entrant = rng.choice(self._entrants)
            return "/entrant?" + urlencode({**where, **entrant, **nonce})
        if kind == "problems":
            return "/problems?" + urlencode({"q": rng.choice("abcdefg"), **nonce})
        if kind == "problem":
            return f"/problems/{name}?" + urlencode(
                {**(where if rng.random() < 0.5 else {}), "page": rng.choice([1, 1, 2]), **nonce}
            )
        if kind == "archive":
            return f"/problems/{name}/archive.html?" + urlencode(nonce)
        if kind == "kernel":
            return f"/kernels/{sha}?" + urlencode({"evaluation": evaluation, **nonce})
        if kind == "diff":
            return f"/kernels/{sha}/diff?" + urlencode({"problem": of, **nonce})
        if kind == "runs":
            return "/runs?" + urlencode({"before": run, **nonce})
        if kind in ("run", "live", "transcript"):
            return f"/runs/{run}{'' if kind == 'run' else '/' + kind}?" + urlencode(nonce)
        if kind == "compare":
            return "/compare?" + urlencode({"a": run, "b": rng.choice(self._runs), **nonce})
        if kind == "quarantine":
            rule = {"rule": rng.choice(self._rules)} if self._rules and rng.random() < 0.5 else {}
            return "/quarantine?" + urlencode({"before": evaluation, **rule, **nonce})
        if kind == "json":
            return "/board.json?" + urlencode({**where, **nonce})
        return f"/problems/{name}/ranking.csv?" + urlencode(nonce)


@contextmanager
def server(path: Path) -> Iterator[str]:
    """The real server, on any free port; gives its address."""
    words = [sys.executable, "-m", "kernelwright.cli", "serve", "--json", "--store", str(path), "--port", "0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["url"]).rstrip("/")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(10)


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def quantiles(times_ms: list[float]) -> dict[str, float]:
    return {name: round(quantile(times_ms, q), 1) for name, q in (("p50_ms", 0.5), ("p95_ms", 0.95), ("max_ms", 1.0))}


def in_words(times_ms: list[float]) -> str:
    at = {name: quantile(times_ms, share) for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}
    return ", ".join(f"{name} {value:.0f} ms" for name, value in at.items())


async def measure_pages(base: str, addresses: Addresses, each: int) -> dict[str, list[float]]:
    """Milliseconds of requests one after another, by kind."""
    times: dict[str, list[float]] = defaultdict(list)
    async with httpx.AsyncClient(base_url=base, timeout=30) as client:
        for kind in _KINDS:  # what a process does once
            await client.get(addresses.one(kind), headers={"Accept": "text/html"})
        for _ in range(each):
            for kind in _KINDS:
                address = addresses.one(kind)
                began = time.perf_counter()
                answer = await client.get(address, headers={"Accept": "text/html"})
                times[kind].append(1000 * (time.perf_counter() - began))
                if answer.status_code not in (200, 404):
                    raise SystemExit(f"{answer.status_code} {address}: {answer.text[:200]}")
    return times


async def measure_readers(base: str, addresses: Addresses, readers: int, seconds: float, think_s: float):
    """Milliseconds of requests of many readers at once, and what went wrong."""
    times: list[float] = []
    wrong: list[str] = []
    until = time.monotonic() + seconds
    popular = [addresses.one(kind) for kind in _KINDS for _ in range(40)]

    async def read(number: int) -> None:
        rng = random.Random(number)
        await asyncio.sleep(rng.random() * think_s)
        while time.monotonic() < until:
            address = rng.choice(popular)
            began = time.perf_counter()
            try:
                answer = await client.get(address, headers={"Accept": "text/html"})
                if answer.status_code not in (200, 404):
                    wrong.append(f"{answer.status_code} {address}")
            except httpx.HTTPError as error:
                wrong.append(f"{error!r} {address}")
            times.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(think_s)

    limits = httpx.Limits(max_connections=readers, max_keepalive_connections=readers)
    async with httpx.AsyncClient(base_url=base, timeout=30, limits=limits) as client:
        await asyncio.gather(*(read(number) for number in range(readers)))
    return times, wrong


def measure_paint(base: str, addresses: Addresses, each: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds to the first contentful paint and bytes transferred, by kind of page."""
    from playwright.sync_api import sync_playwright

    found: dict[str, dict[str, list[float]]] = {}
    with sync_playwright() as playwright:
        program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for kind in (kind for kind in _KINDS if kind not in ("json", "csv", "live")):
            paints, sizes = [], []
            for _ in range(each):
                context = browser.new_context()
                page = context.new_page()
                wire = context.new_cdp_session(page)
                wire.send("Network.enable")
                received: list[float] = []
                wire.on("Network.loadingFinished", lambda event, into=received: into.append(event["encodedDataLength"]))
                page.goto(base + addresses.one(kind), wait_until="networkidle")
                paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
                paints.append(float(page.evaluate(paint)))
                sizes.append(sum(received))
                context.close()
            found[kind] = {"ms": paints, "bytes": sizes}
        browser.close()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("what", choices=["pages", "readers", "paint"])
    arguments.add_argument("store", type=Path)
    arguments.add_argument("--each", type=int, default=60, help="pages of a kind")
    arguments.add_argument("--readers", type=int, default=200)
    arguments.add_argument("--seconds", type=float, default=30.0)
    arguments.add_argument("--think-s", type=float, default=2.0)
    arguments.add_argument("--out", type=Path, help="write the figures there as JSON")
    given = arguments.parse_args()
    addresses = Addresses(given.store, seed=11)
    with server(given.store) as base:
        if given.what == "pages":
            times = asyncio.run(measure_pages(base, addresses, given.each))
            for kind, found in times.items():
                print(f"{kind:12} {in_words(found)}")
            figures = {kind: quantiles(found) for kind, found in times.items()}
        elif given.what == "paint":
            figures = {}
            for kind, seen in measure_paint(base, addresses, min(given.each, 24)).items():
                print(f"{kind:12} {in_words(seen['ms'])}, {max(seen['bytes']) / 1000:.0f} KB")
                figures[kind] = {**quantiles(seen["ms"]), "most_bytes": max(seen["bytes"])}
        else:
            found, wrong = asyncio.run(measure_readers(base, addresses, given.readers, given.seconds, given.think_s))
            print(
                f"{given.readers} readers, {len(found)} requests, {len(found) / given.seconds:.0f}/s: {in_words(found)}"
            )
            print(f"{len(wrong)} went wrong", *wrong[:5], sep="\n  ")
            figures = {"readers": given.readers, "requests": len(found), "wrong": len(wrong), **quantiles(found)}
    if given.out is not None:
        known = json.loads(given.out.read_text()) if given.out.exists() else {}
        with Store.open(given.store, readonly=True) as store:
            evaluations = store.query("SELECT count(*) AS n FROM evaluations")[0]["n"]
        about = {"environment": environment(1).model_dump(), "evaluations": evaluations}
        given.out.write_text(json.dumps({**known, **about, given.what: figures}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
