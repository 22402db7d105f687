"""From a specification to a role."""

from __future__ import annotations

import pytest

from kernelwright.agents import coder_from_spec, judge_from_spec
from kernelwright.agents.offline_coder import OfflineCoder
from kernelwright.agents.offline_judge import OfflineJudge
from kernelwright.agents.registry import RoleRegistry
from kernelwright.errors import UsageError


def test_offline_is_there():
    assert isinstance(coder_from_spec("offline"), OfflineCoder)
    assert isinstance(judge_from_spec("offline"), OfflineJudge)


def test_a_policy_that_is_not_there_says_how_to_make_one():
    with pytest.raises(UsageError, match="no schedule policy") as caught:
        coder_from_spec("policy:path")
    assert "rl train" in caught.value.hint
    with pytest.raises(UsageError, match="unknown judge"):
        judge_from_spec("policy:path")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("openai:gpt-5", "openai:gpt-5"),
        ("openai:a:b", "openai:a:b"),
        ("anthropic:claude", "anthropic:claude"),
        ("replay:/home/me/log.jsonl", "replay"),
        ("mailbox:/home/me/box", "mailbox"),
    ],
)
def test_a_model_plays_any_role_for_every_backend_and_no_place_is_its_name(spec, name):
    for build in (coder_from_spec, judge_from_spec):
        assert build(spec).name == name
    assert coder_from_spec(spec, "cuda").backends == {"cpp", "triton", "cuda"}


def test_an_unknown_one_names_those_near():
    with pytest.raises(UsageError, match="ofline") as caught:
        coder_from_spec("ofline")
    assert "did you mean offline?" in caught.value.hint


def test_offline_takes_no_argument():
    with pytest.raises(UsageError, match="takes no argument"):
        coder_from_spec("offline:fast")


def test_two_claims_to_one_name_raise():
    registry: RoleRegistry[str] = RoleRegistry("coder")
    registry.register("mine", lambda rest: rest)
    assert registry.build("mine:rest:more") == "rest:more"
    with pytest.raises(ValueError, match="two coders claim"):
        registry.register("mine", lambda rest: rest)
