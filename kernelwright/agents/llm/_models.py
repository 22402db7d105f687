"""The models of a run: opened once by their specs and shared by its problems, with a limit of requests for each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kernelwright.agents.llm._budget import Budget, Limits
from kernelwright.agents.llm._client import ModelClient, Retries
from kernelwright.agents.llm._mailbox import MailboxProvider
from kernelwright.agents.llm._prices import PriceTable
from kernelwright.agents.llm._providers import KEY_NAMES, endpoint_of, metered_provider, vendors_own
from kernelwright.agents.llm._recording import ReplayProvider, read_recording
from kernelwright.agents.llm._types import Provider
from kernelwright.config import Endpoint, Settings
from kernelwright.errors import UsageError

if TYPE_CHECKING:
    from kernelwright.store import Store

FILE_WORDS = frozenset({"mailbox", "replay"})
MODEL_WORDS = FILE_WORDS | set(KEY_NAMES)
_PATH_WORDS = FILE_WORDS | {"policy"}
_RECORDINGS = Path(__file__).parents[2] / "datasets" / "recordings"
_A_PROMPT = 20_000  # tokens of a typical prompt, to check whether its price is known


def is_metered(spec: str) -> bool:
    """Whether the replies of a specification's model are billed."""
    return spec.partition(":")[0] in KEY_NAMES


def is_model(spec: str) -> bool:
    """Whether a specification names a language model."""
    return spec.partition(":")[0] in MODEL_WORDS


def absolute_spec(spec: str) -> str:
    """A specification with absolute paths, which does not depend on the working directory."""
    word, _, rest = spec.partition(":")
    if word not in _PATH_WORDS or not rest:
        return spec
    path = recording_path(rest) if word == "replay" else Path(rest)
    return f"{word}:{path.absolute()}"


def recording_path(name: str) -> Path:
    """The file of a recording, given by a path or by the name of a recording that comes with the package."""
    path, own = Path(name), _RECORDINGS / f"{name}.jsonl"
    return own if "/" not in name and not path.exists() and own.exists() else path


def recorded_problems(spec: str) -> tuple[str, ...]:
    """The problems for which a recording has replies, in the order of their first reply; empty for other models.

    Raises:
        UsageError: the recording cannot be read.
    """
    word, _, rest = spec.partition(":")
    if word != "replay" or not rest:
        return ()
    return tuple(dict.fromkeys(place.problem for place in read_recording(recording_path(rest))))


class Models:
    """The providers of some specs. A context manager.

    Raises:
        UsageError: a spec without a model or file, a broken price table, or a model of unknown price without a cap
            in tokens.
        MissingToolError: a key is missing.
    """

    def __init__(self, settings: Settings, specs: Iterable[str]) -> None:
        self._settings = settings
        self.prices = PriceTable.load(settings.prices, listed=vendors_own(settings))
        self._providers: dict[str, Provider] = {}
        self._slots: dict[str, threading.Semaphore] = {}
        try:
            for spec in sorted({spec for spec in specs if is_model(spec)}):
                self._providers[spec] = open_provider(spec, settings)
                self._slots.setdefault(spec.partition(":")[0], threading.Semaphore(self._endpoint(spec).concurrency))
            self._refuse_unbounded()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Models:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._providers)

    @property
    def metered(self) -> tuple[str, ...]:
        """The specs of models whose replies are billed."""
        return tuple(spec for spec, provider in self._providers.items() if provider.metered)

    def close(self) -> None:
        """End the requests in flight."""
        for provider in self._providers.values():
            provider.close()

    def clients(
        self,
        store: Store,
        run_id: str,
        limits: Limits,
        *,
        wait: Callable[[float], str],
        note: Callable[[str, Mapping[str, object]], object],
    ) -> dict[str, ModelClient]:
        """A client of each model for a run; all clients share one budget."""
        if not self._providers:
            return {}
        budget = Budget(store, run_id, limits, stopped=lambda: wait(0.0))
        return {
            spec: ModelClient(
                provider,
                store,
                run_id,
                budget,
                self.prices,
                wait=wait,
                slots=self._slots[spec.partition(":")[0]],
                retries=Retries(tries=self._endpoint(spec).tries),
                fresh=self._settings.replies == "fresh",
                note=note,
            )
            for spec, provider in self._providers.items()
        }

    def _endpoint(self, spec: str) -> Endpoint:
        """The server settings for a spec. A mailbox and a recording use the limits of ``openai``."""
        word = spec.partition(":")[0]
        return endpoint_of(word if word in KEY_NAMES else "openai", self._settings)

    def _refuse_unbounded(self) -> None:
        """Raise UsageError for a model of unknown price without a limit in tokens, its only possible limit."""
        for spec in self.metered:
            if self._settings.max_tokens is None and self.prices.find(spec, _A_PROMPT) is None:
                raise UsageError(
                    f"the price of {spec} is unknown",
                    hint="limit its tokens with --max-tokens N, or give its prices: --set prices=FILE",
                    spec=spec,
                )


def open_provider(spec: str, settings: Settings) -> Provider:
    """The provider that a spec names.

    Raises:
        UsageError, MissingToolError: as :class:`Models`.
    """
    word, _, rest = spec.partition(":")
    if not rest:
        what = {"mailbox": "a folder: mailbox:DIR", "replay": "a recording: replay:FILE"}
        raise UsageError(f"{spec!r} names no model", hint=f"write {what.get(word, f'{word}:MODEL')}", spec=spec)
    if word == "mailbox":
        return MailboxProvider(Path(rest))
    if word == "replay":
        return ReplayProvider(recording_path(rest))
    return metered_provider(spec, settings)
