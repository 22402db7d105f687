"""Calls: one function, one payload, one answer, and every way in which there is none."""

from __future__ import annotations

import pickle

import pytest

from kernelwright.sandbox import Limits, WorkerFailed


def failure(sandbox, entry, payload=None, **options):
    with pytest.raises(WorkerFailed) as caught:
        sandbox.call(f"sandbox_guests:{entry}", payload or {}, **options)
    return caught.value


def test_an_answer(sandbox):
    assert sandbox.call("sandbox_guests:double", {"value": 21}) == {"value": 42}


def test_a_large_payload_and_a_large_answer(sandbox):
    payload = {"text": "x" * (2 << 20)}
    assert sandbox.call("sandbox_guests:look", payload)["payload"] == payload


def test_an_exception_comes_back_with_its_traceback(sandbox):
    error = failure(sandbox, "refuse")
    assert error.kind == "exception"
    assert "ValueError: no such thing" in error.message
    assert "in refuse" in error.traceback
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.traceback) == (error.kind, error.traceback)


def test_a_function_that_does_not_exist(sandbox):
    assert failure(sandbox, "nothing").kind == "exception"


@pytest.mark.parametrize(
    ("entry", "payload"),
    [
        ("not_an_object", {}),
        ("infinite", {}),
        ("large", {"size": 200_000}),
        ("deep", {"depth": 200}),
        ("smuggle", {}),
        ("forge", {"bytes": "7fffffff"}),
        ("forge", {"bytes": "00000004deadbeef"}),
        ("forge", {"bytes": (b"\0\0\0\x12" + b'{"result":[1,2,3]}').hex()}),
    ],
)
def test_unacceptable_answers(bwrap, entry, payload):
    assert failure(bwrap, entry, payload, max_reply_bytes=100_000).kind == "reply"


@pytest.mark.parametrize(
    ("entry", "limits", "kind"),
    [
        ("abort", Limits(), "crash"),
        ("forge", Limits(), "crash"),
        ("spin_forever", Limits(wall_s=0.5), "timeout"),
        ("hoard", Limits(memory_bytes=300 << 20), "oom"),
        ("babble", Limits(output_bytes=10_000), "output"),
    ],
)
def test_workers_that_die(bwrap, entry, limits, kind):
    if kind == "oom" and "memory:rlimit+watchdog" in bwrap.layers:
        pytest.skip("without a memory controller the allocation itself is refused")
    assert failure(bwrap, entry, {"bytes": ""}, limits=limits).kind == kind


def test_what_a_loaded_kernel_has_no_use_for_is_refused(sandbox):
    assert sandbox.call("sandbox_guests:forbidden", {}) == {"passed": []}
