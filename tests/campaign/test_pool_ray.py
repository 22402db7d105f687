"""Seats of a real Ray cluster: several nodes, nodes that die, actors that die, and a run on them."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest
from campaign_fakes import ENVIRONMENT, FakeReferee, make_problem, register_scripted_roles

from kernelwright.campaign import Campaign
from kernelwright.config import Settings
from kernelwright.errors import UsageError
from kernelwright.pool import Dispatcher, closing_pool
from kernelwright.pool._ray import RayRoster
from kernelwright.records import Status
from kernelwright.store import Store

pytestmark = pytest.mark.ray
PROBLEMS = [make_problem(name) for name in ("one", "two", "three", "deadly", "four")]


class DeadlyReferee(FakeReferee):
    """Its process dies whenever it judges a candidate of the problem "deadly"."""

    def _point(self, name):
        self.now = name.removeprefix("open ") if name.startswith("open ") else self.now
        if name.startswith("judging") and self.now == "deadly":
            os.kill(os.getpid(), signal.SIGKILL)

    def __init__(self, settings):
        super().__init__({"v0": 1.5, "v1": 2.0})
        self.now, self.point = "", self._point


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"kernelwright": 0.0}})
    made.add_node(num_cpus=1, resources={"kernelwright": 2, "sm_90": 2})
    yield made
    import ray

    ray.shutdown()
    made.shutdown()


def test_a_run_on_two_actors_ends_and_a_deadly_candidate_is_quarantined(cluster, tmp_path):
    register_scripted_roles()
    settings = Settings(
        store=tmp_path / "store.db", cache_dir=tmp_path / "cache", coder="scripted", judge="scripted", rounds=2
    )
    told = []

    @contextmanager
    def open_pool(settings, languages, **more):
        roster = RayRoster(cluster.address, "sm_90", open_referee=DeadlyReferee)
        assert len(roster.names()) == 2
        with closing_pool(Dispatcher(roster, look_s=0.1, **more)) as pool:
            yield pool

    with Store.open(settings.store) as store:
        campaign = Campaign(
            settings, store, open_referee=lambda _: FakeReferee(), open_pool=open_pool, tell=told.append
        )
        result = campaign.run(PROBLEMS)
        rows = {row.problem.rpartition("/")[2]: row for row in result.rows}
        assert result.status == "finished"
        assert rows.pop("deadly").state == "failed"
        assert {(row.state, row.status, row.environment) for row in rows.values()} == {
            ("done", Status.PASSED, ENVIRONMENT.id)
        }
        verdicts = store.evaluations(run_id=result.run_id, problem=PROBLEMS[3].id)
        assert {one.verdict.status for one in verdicts} == {Status.QUARANTINED}
        assert sum("the job is asked again" in event.data.get("text", "") for event in told) >= len(verdicts)


def test_no_cluster_at_an_address_is_a_clear_error():
    with pytest.raises(UsageError, match=r"no Ray cluster answers at 127.0.0.1:1: ConnectionRefusedError") as caught:
        RayRoster("127.0.0.1:1")
    assert "ray start --head" in caught.value.hint
