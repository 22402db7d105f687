"""Makers of small, valid records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernelwright.records import (
    Candidate,
    Environment,
    Evaluation,
    Interval,
    Problem,
    Profile,
    Speedup,
    Stage,
    Status,
    Timing,
    TimingSample,
    Verdict,
)
from kernelwright.store import Store


class Makers:
    """Records with everything filled in that a test does not care about."""

    environment = Environment(
        device="cpu",
        device_class="cpu",
        cpu="some cpu",
        cores=2,
        os="linux",
        python="3.11",
        torch="2.13.0",
        compiler="g++ 12",
        threads=1,
        extra={"b": "1", "a": "2"},
    )

    @staticmethod
    def problem(name: str = "softmax", source: str = "class Model: ...\n") -> Problem:
        return Problem(id=f"suite/level1/{name}", suite="suite", level=1, name=name, source=source)

    @staticmethod
    def candidate(source: str = "kernel", **fields) -> Candidate:
        return Candidate(**({"problem_id": "suite/level1/softmax", "source": source, "backend": "cpp"} | fields))

    @staticmethod
    def timing(low: float = 1.5, *, confirmed: bool = False, baselines: tuple[str, ...] = ("eager",)) -> Timing:
        speedup = Speedup(median=low + 0.1, low=low, high=low + 0.2, faster=low > 1.014)
        return Timing(
            latency_ms=Interval(median=1.0 / low, low=0.9 / low, high=1.1 / low),
            processes=1,
            pairs=12,
            threads=1,
            confirmed=confirmed,
            noise_bound=0.014,
            speedup=dict.fromkeys(baselines, speedup),
        )

    def evaluation(
        self,
        source: str = "kernel",
        *,
        low: float | None = 1.5,
        confirmed: bool = False,
        status: Status = Status.PASSED,
        environment: Environment | None = None,
        baselines: tuple[str, ...] = ("eager",),
        candidate: Candidate | None = None,
        samples: int = 3,
        artifacts: dict[str, str] | None = None,
        **verdict,
    ) -> Evaluation:
        """An evaluation; ``low`` is the speedup's lower bound (None: not timed)."""
        environment = environment or self.environment
        candidate = candidate or self.candidate(source)
        timed = low is not None and status is Status.PASSED
        reached = Stage.CONFIRMED if confirmed else Stage.TIMED if timed else Stage.CHECKED
        fields = {
            "candidate": candidate.sha256,
            "problem": candidate.problem_id,
            "backend": candidate.backend,
            "stage": reached if status is Status.PASSED else Stage.COMPILED,
            "status": status,
            "reason": "" if status is Status.PASSED else "because",
            "timing": self.timing(low, confirmed=confirmed, baselines=baselines) if timed else None,
            "environment": environment.id,
        }
        return Evaluation(
            candidate=candidate,
            verdict=Verdict(**(fields | verdict)),
            environment=environment,
            samples=tuple(
                TimingSample(
                    role=("candidate", "eager")[n % 2], process=0, pair=n // 2, order=n % 2, calls=9, latency_ms=n
                )
                for n in range(samples)
            ),
            artifacts=artifacts or {},
        )

    @staticmethod
    def profile() -> Profile:
        return Profile(rung="callgrind", bound="memory", metrics={"bytes": 3.0}, notes=("streaming",))


@pytest.fixture
def make() -> Makers:
    return Makers()


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store.db"


@pytest.fixture
def store(store_path: Path, make: Makers) -> Iterator[Store]:
    """An open store that knows one problem."""
    with Store.open(store_path) as opened:
        opened.record_problem(make.problem())
        yield opened


@pytest.fixture
def lows(store: Store) -> Callable[..., list[float]]:
    """Lower bounds of the best rows."""

    def read(**arguments) -> list[float]:
        return [row.speedup.low for row in store.best(**arguments)]

    return read
