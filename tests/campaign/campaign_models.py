"""What a loopback model answers: valid replies to whatever it is asked, the same ones to the same questions."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "agents"))

from llm_server import Answer, Asked, Cut, Hangup, Refusal, Tokens, overloaded, rate_limited

from kernelwright.records import sha256_text

FIELDS = {
    "critical_issue": {"critical_issue": "it is wrong", "why": "so it says", "minimal_fix": "mend it"},
    "bottleneck": {"bottleneck": "memory", "method": "fuse", "plan": "one pass", "expected_effect": "2x"},
    "notes": {"notes": "one pass over x is enough"},
}


def reply_to(asked: Asked) -> str:
    """A valid reply, made of what was asked."""
    fields = (asked.schema or {}).get("properties", {})
    for name, reply in FIELDS.items():
        if name in fields:
            return json.dumps(reply)
    name = sha256_text(asked.text)[:8]
    return json.dumps({"plan": f"idea {name}", "source": f"v_{name}\n\n\nclass ModelNew:\n    pass\n"})


def tokens_of(asked: Asked) -> Tokens:
    """Some, which depend on what was asked."""
    return Tokens(len(asked.text) // 4, len(reply_to(asked)) // 4, cached=len(asked.text) // 8, reasoning=7)


def well_behaved(asked: Asked) -> Answer:
    """Answers everything."""
    return Answer(reply_to(asked), tokens_of(asked))


FAULTS: tuple[Callable[[Asked], object], ...] = (
    lambda asked: rate_limited(retry_after="1"),
    lambda asked: Refusal(500, "oops", "server_error"),
    lambda asked: overloaded(),
    lambda asked: Hangup(),
    lambda asked: Cut(),
    lambda asked: Cut(broken=False),
    lambda asked: Answer('{"plan": "cut', tokens_of(asked)),
    lambda asked: Answer("I cannot do that.", tokens_of(asked), stop="refused"),
    lambda asked: Answer("", tokens_of(asked)),
    lambda asked: Answer("```python\nclass ModelNew: pass\n```", tokens_of(asked)),
    lambda asked: Answer(reply_to(asked), None),
    lambda asked: Answer(reply_to(asked)[:40], tokens_of(asked), stop="length"),
)


CONTENT = FAULTS[6:]  # a reply comes, whatever is wrong with it


class Faulty:
    """Answers, but for one request in ``every``, whose fault depends on what is asked and how often it was before.

    So it is the same one whatever threads do.
    """

    def __init__(self, every: int) -> None:
        self.faults: Counter[int] = Counter()  # by their position in FAULTS
        self._every = every
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> object:
        with self._lock:
            self._times[asked.text] += 1
            lot = int(sha256_text(f"{self._times[asked.text]} {asked.text}")[:12], 16)
            if lot % self._every:
                return well_behaved(asked)
            fault = lot // self._every % len(FAULTS)
            self.faults[fault] += 1
        return FAULTS[fault](asked)
