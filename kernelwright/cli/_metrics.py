"""Figures for monitoring systems: OpenMetrics over HTTP, on this machine's loopback address alone.

The text format is the one of https://prometheus.io/docs/specs/om/open_metrics_spec/ (version 1.0).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from kernelwright import __version__
from kernelwright.cli._common import say
from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.listening import address_of, is_loopback, listen

if TYPE_CHECKING:
    from kernelwright.campaign import CampaignEvent
    from kernelwright.campaign.live import Standing
    from kernelwright.cli._progress import Listener
    from kernelwright.pool import SpoolFolder

HOST = "127.0.0.1"
CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_PATIENCE_S = 5.0  # with a client that asks slowly
_SUFFIX = {"counter": "_total", "info": "_info", "gauge": ""}
_STATUSES = ("running", "paused", "finished", "failed", "cancelled", "interrupted")

metrics_option = click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help=f"Serve OpenMetrics at http://{HOST}:PORT/metrics meanwhile; 0: any free port.",
)


class Family(NamedTuple):
    """Samples of one name. ``samples``: pairs of labels and a value; ``unit``: the name's last word."""

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]
    unit: str = ""


def exposition(families: Iterable[Family]) -> str:
    """The text of metrics. Families without a sample are left out."""
    lines = []
    for family in families:
        if not family.samples:
            continue
        name = f"kernelwright_{family.name}"
        lines.append(f"# TYPE {name} {family.kind}")
        lines += [f"# UNIT {name} {family.unit}"] if family.unit else []
        lines.append(f"# HELP {name} {_escaped(family.help)}")
        for labels, value in family.samples:
            told = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            lines.append(f"{name}{_SUFFIX.get(family.kind, '')}{{{told}}} {value!r}")
    return "\n".join([*lines, "# EOF", ""])


def _escaped(text: str) -> str:
    """A label's value. Other control characters than a line feed become blanks."""
    plain = "".join(one if one.isprintable() or one == "\n" else " " for one in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


# ------------------------------------------------------------------------------------------------- figures


def build_family() -> Family:
    return Family("build", "info", "The version that runs.", [({"version": __version__}, 1)])


def run_families(standing: Standing, verdicts: Mapping[str, int]) -> list[Family]:
    """The figures of a run.

    Args:
        verdicts: their numbers by status.
    """
    run = {"run": standing.run}
    now = datetime.now(UTC)
    ages = [
        ({**run, "problem": one.problem}, max(0.0, (now - datetime.fromisoformat(one.since)).total_seconds()))
        for one in standing.working_on
    ]
    problems = {"done": standing.done, "running": standing.running, "left": standing.left}
    awaited = {"replies": standing.replies_awaited, "verdicts": standing.verdicts_awaited}
    families = [
        Family(
            "run_status",
            "stateset",
            "The status of the run.",
            [({**run, "kernelwright_run_status": name}, int(name == standing.status)) for name in _STATUSES],
        ),
        Family("problems", "gauge", "Problems of the run by state.", _by("state", run, problems)),
        Family("winners", "gauge", "Problems with a right kernel.", [(run, standing.winners)]),
        Family("verdicts", "counter", "Verdicts by status.", _by("status", run, verdicts)),
        Family("device_seconds", "counter", "The referee's time.", [(run, standing.device_seconds)], "seconds"),
        Family(
            "cost_usd", "counter", "What the models cost; absent if unknown.", _known(run, standing.cost_usd), "usd"
        ),
        Family(
            "eta_seconds", "gauge", "Expected time until the last problem ends.", _known(run, standing.eta_s), "seconds"
        ),
        Family("awaited", "gauge", "Replies and verdicts that are awaited.", _by("what", run, awaited)),
        Family("problem_seconds", "gauge", "How long problems have been worked on.", ages, "seconds"),
    ]
    pool = standing.pool
    if pool is not None:
        seats = {"busy": pool.busy, "idle": max(0, pool.seats - pool.busy)}
        families += [
            Family("pool_seats", "gauge", "Open seats of the pool by state.", _by("state", run, seats)),
            Family("pool_waiting_jobs", "gauge", "Jobs that no seat has yet.", [(run, pool.waiting)]),
            Family("pool_lost_seats", "counter", "Seats that died.", [(run, pool.lost)]),
            Family("pool_drained_seats", "counter", "Seats that were put aside.", [(run, pool.drained)]),
            Family("pool_answers", "counter", "Answers of the pool.", [(run, pool.answered)]),
        ]
    if pool is not None and pool.ready_s > 0:  # else its seats are not timed
        ready = "Time in which seats worked or could have worked on waiting jobs."
        families += [
            Family("pool_busy_seconds", "counter", "Time in which seats worked.", [(run, pool.busy_s)], "seconds"),
            Family("pool_ready_seconds", "counter", ready, [(run, pool.ready_s)], "seconds"),
        ]
    return families


def spool_families(folder: SpoolFolder) -> list[Family]:
    """The figures of a spool and its workers."""
    state = folder.state()
    jobs = {"waiting": state.waiting, "claimed": state.claimed, "answered": state.answered}
    return [
        Family("spool_jobs", "gauge", "Jobs of the spool by state.", _by("state", {}, jobs)),
        Family(
            "worker_answers",
            "counter",
            "Jobs that each worker of the spool has answered.",
            [({"worker": beat.worker}, beat.done) for beat in state.workers],
        ),
        Family(
            "worker_busy",
            "gauge",
            "Whether each worker of the spool has a job, as it last said.",
            [({"worker": beat.worker}, int(bool(beat.doing))) for beat in state.workers],
        ),
    ]


def _by(label: str, common: Mapping[str, str], counts: Mapping[str, int]) -> list[tuple[Mapping[str, str], float]]:
    return [({**common, label: name}, count) for name, count in counts.items()]


def _known(labels: Mapping[str, str], value: float | None) -> list[tuple[Mapping[str, str], float]]:
    return [] if value is None else [(labels, value)]


# ------------------------------------------------------------------------------------------------- serving


@contextmanager
def run_metrics(port: int | None, store_path: Path) -> Iterator[Callable[[Listener], Listener]]:
    """Serve the figures of the run that begins inside; without a port, do nothing.

    Yields:
        a function that makes a listener which also learns here which run it is.

    Raises:
        UsageError: the port is taken.
    """
    if port is None:
        yield lambda listener: listener
        return
    from kernelwright.campaign.live import Watcher
    from kernelwright.store import Store

    watchers: list[Watcher] = []
    with Store.open(store_path, readonly=True) as store:

        def page() -> str:
            families = [build_family()]
            for watcher in tuple(watchers):
                standing = watcher.look()
                counts: Counter[str] = Counter()
                for row in store.tallies(run_id=standing.run):
                    counts[row["status"]] += row["evaluations"]
                families += run_families(standing, counts)
            return exposition(families)

        def heeding(listener: Listener) -> Listener:
            def heed(event: CampaignEvent) -> None:
                if event.kind == "run-started" and not watchers:
                    watchers.append(Watcher(store, event.data["run"]))
                listener(event)

            return heed

        with serving(port, page):
            yield heeding


@contextmanager
def worker_metrics(port: int | None, folder: SpoolFolder) -> Iterator[None]:
    """Serve the figures of a spool; without a port, do nothing. Raises UsageError if the port is taken."""
    if port is None:
        yield
        return
    with serving(port, lambda: exposition([build_family(), *spool_families(folder)])):
        yield


@contextmanager
def serving(port: int, page: Callable[[], str]) -> Iterator[None]:
    """Answer ``GET /metrics`` in threads that do not keep the process alive. The address is told on standard error.

    Raises:
        UsageError: the port is taken.
    """
    try:
        listener = listen(HOST, port)
    except UsageError as error:
        raise UsageError(error.message, hint="choose another --metrics-port, or 0 for any free one") from None
    server = _Server((HOST, port), _handler(page), bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
    thread.start()
    say(f"metrics are at {address_of(HOST, listener)}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write nothing: the client has gone, or the run has ended."""


def _handler(page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    one_at_a_time = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE_S

        def version_string(self) -> str:
            return "kernelwright"

        def log_message(self, format: str, *arguments: Any) -> None:
            """Write no log: standard error shows progress."""

        def do_GET(self) -> None:
            status, kind, body = self._answer()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def _answer(self) -> tuple[int, str, bytes]:
            try:
                host = urlsplit(f"//{self.headers.get('Host', HOST)}").hostname or ""
            except ValueError:
                host = ""
            if not is_loopback(host):  # a name that another site has pointed at this address
                return 403, "text/plain; charset=utf-8", b"this server has no such name\n"
            if urlsplit(self.path).path != "/metrics":
                return 404, "text/plain; charset=utf-8", b"the metrics are at /metrics\n"
            try:
                with one_at_a_time:
                    return 200, CONTENT_TYPE, page().encode("utf-8", "replace")
            except (KernelwrightError, OSError):
                return 503, "text/plain; charset=utf-8", b"the figures cannot be read now\n"

    return Handler
