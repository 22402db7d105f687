"""What an oracle on a device works out is what the host works out of the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from referee_small_problems import LINEAR_PROBLEM, SOFTMAX_PROBLEM, make_problem

from kernelwright.errors import InvalidReferenceError
from kernelwright.evaluator import Referee
from kernelwright.evaluator.accuracy import arrays
from kernelwright.evaluator.truth import check_sets
from kernelwright.evaluator.worker.device_oracle import error_scale, facts_of, rms

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
@pytest.mark.parametrize("kind", ["plain", "zeros", "not finite", "tiny", "one number"])
def test_scales_and_facts_are_the_hosts(dtype, kind):
    exact = RNG.standard_normal((1,) if kind == "one number" else (40, 30))
    exact = {"zeros": exact * 0.0, "tiny": exact * 1e-200}.get(kind, exact)
    if kind == "not finite":
        exact[0, :3] = np.inf, -np.inf, np.nan
    deviation, rows = np.abs(exact) * 1e-7, np.full((*exact.shape[:-1], 1), 3e-8)
    deviation[~np.isfinite(deviation)] = 0.0
    roundoff, floor = arrays.unit_roundoff(dtype), arrays.smallest_scale(dtype)
    host = arrays.scale(deviation, rows, exact, dtype, roundoff)
    there = error_scale(*map(torch.from_numpy, (deviation, rows, exact)), roundoff, floor)
    np.testing.assert_allclose(there.numpy(), host, rtol=1e-14)
    low = exact.astype(np.float32).astype(np.float64)
    facts = facts_of(torch.from_numpy(low), torch.from_numpy(exact), there)
    finite = exact[np.isfinite(exact)]
    assert facts["finite"] == bool(np.isfinite(exact).all())
    assert facts["largest"] == np.abs(finite).max()
    assert facts["rms"] == pytest.approx(float(np.sqrt(np.mean(finite**2))), rel=1e-12, abs=1e-300) or kind == "tiny"
    assert facts["median"] == pytest.approx(float(np.median(host)), rel=0.05)
    assert rms(torch.from_numpy(exact)) == facts["rms"]


@pytest.mark.untimed
def test_a_check_set_leaves_the_device_room_for_candidates(referee, stand_in_device, monkeypatch):
    monkeypatch.setattr("kernelwright.evaluator.device.asker._MOST_SHARE", 1e-5)
    with Referee(referee.settings, device=stand_in_device) as made:
        with pytest.raises(InvalidReferenceError, match="half of the device's memory: use smaller sizes"):
            made.open(make_problem(SOFTMAX_PROBLEM, "there"), backend="cuda", baselines=("eager",))


@pytest.mark.untimed
@pytest.mark.parametrize("text", [SOFTMAX_PROBLEM, LINEAR_PROBLEM], ids=["softmax", "linear"])
def test_inputs_come_from_the_device_and_truths_stay_there(referee, stand_in_device, text, monkeypatch):
    monkeypatch.delattr(check_sets, "like_slots")  # draws of the host
    settings = referee.settings.with_values(measurement=referee.settings.measurement.with_values(check_trials=3))
    with Referee(settings, device=stand_in_device) as made:
        with made.open(make_problem(text, "there"), backend="cuda", baselines=("eager",)) as session:
            checks = session.prepare_for("cuda")
            truths = [truth for group in checks.trials for trial in group for truth in trial.truths]
            assert len(truths) > 6
            for trial in (*(trial for group in checks.trials for trial in group), *checks.reserve):
                assert not trial.data.size, "no inputs on the host"
                assert trial.elsewhere.size in {variant.slot_bytes for variant in checks.variants}
            for truth in truths:
                assert truth.elsewhere is not None
                assert truth.elsewhere.facts.finite
                assert not np.any(truth.exact), "no values on the host"
                sums = truth.elsewhere.reference_sums(peaks=False)
                assert sums.elements == truth.exact.size
                assert 0.0 < sums.norm < 4.0
