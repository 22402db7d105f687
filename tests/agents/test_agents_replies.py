"""Structured replies: what is valid, what is asked again, what counts as a failed step."""

from __future__ import annotations

import json

import pytest
from agents_models import FakePrices, FakeProvider, fault
from campaign_fakes import make_problem

from kernelwright.agents.llm import Budget, Limits, ModelClient, ModelFault, Place, Reply, Usage
from kernelwright.agents.replies import (
    Edit,
    EditReply,
    KernelReply,
    OptimiseAdvice,
    Prediction,
    RepairAdvice,
    apply_edits,
    ask,
    schema_of,
    unfenced,
)
from kernelwright.agents.roles import RoleFailed
from kernelwright.records import RunConfig
from kernelwright.store import Store

PROBLEM = make_problem()
GOOD = {"plan": "unroll", "source": "class ModelNew: ..."}


@pytest.fixture
def store(tmp_path):
    with Store.open(tmp_path / "store.db") as opened:
        yield opened


@pytest.fixture
def asking(store):
    """Asks a model that answers one thing after the other."""

    def asked(*answers, **more):
        provider = FakeProvider(lambda request, number: answers[number])
        run_id = store.create_run(RunConfig(problems=(PROBLEM.id,)), [PROBLEM])
        budget = Budget(store, run_id, Limits())
        client = ModelClient(provider, store, run_id, budget, FakePrices(), wait=lambda seconds: "", fresh=True)
        values = {"system": "s", "user": "u", "reply": KernelReply, "max_output_tokens": 100, **more}
        try:
            return ask(client, Place(PROBLEM.id, 0, "coder"), **values), provider
        except RoleFailed as failed:
            return failed, provider

    return asked


def test_a_valid_reply_is_taken(asking):
    answer, provider = asking(GOOD)
    assert answer.value == KernelReply(**GOOD)
    assert provider.requests[0].schema == schema_of(KernelReply)
    assert answer.prompt_sha256 == provider.requests[0].prompt_sha256


def test_json_in_a_fence_is_json(asking):
    answer, _ = asking(f"```json\n{json.dumps(GOOD)}\n```")
    assert answer.value.plan == "unroll"


KERNEL = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
USABLE = {
    "thoughts before it": f"<think>\nhm {{not json}}\n</think>\n\n{json.dumps(GOOD)}",
    "thoughts before a fence": f"<think>```python\nclass ModelNew: pass\n```</think>\n```json\n{json.dumps(GOOD)}\n```",
    "prose around it": f"Here you are:\n\n{json.dumps(GOOD)}\n\nIt is fast.",
    "the last of two": f'{{"plan": "draft"}}\nNo, better:\n{json.dumps(GOOD, indent=1)}',
}


@pytest.mark.parametrize("text", USABLE.values(), ids=USABLE)
def test_an_object_among_other_text_is_found(asking, text):
    answer, provider = asking(text)
    assert answer.value == KernelReply(**GOOD)
    assert len(provider.requests) == 1


def test_one_fenced_kernel_is_taken_for_the_object(asking):
    answer, _ = asking(f"Sure! Unroll it:\n\n```python\n{KERNEL}```\n\nIt fuses everything.")
    assert answer.value == KernelReply(plan="Sure! Unroll it:", source=KERNEL)
    two = f"```python\n{KERNEL}```\nor\n```python\n{KERNEL}```\n"
    answer, provider = asking(two, GOOD)
    assert len(provider.requests) == 2


def test_what_a_model_only_thought_of_is_no_answer(asking):
    fence = f"```python\n{KERNEL}```"
    answer, provider = asking(f"<think>\n{fence}\n</think>\nThis one:\n{fence}\n")
    assert (answer.value, len(provider.requests)) == (KernelReply(plan="This one:", source=KERNEL), 1)
    answer, provider = asking(f"<think>\n{json.dumps(GOOD)}\n</think>\n", GOOD)
    assert len(provider.requests) == 2
    assert "it is empty" in provider.requests[1].messages[2].text


BAD = {
    "no json": "Here is your kernel: import torch",
    "code outside the schema": "```python\nimport torch\n```",
    "cut json": '{"plan": "unroll", "sour',
    "a field missing": {"plan": "unroll"},
    "a field too many": {**GOOD, "confidence": 1},
    "another type": {"plan": 3, "source": []},
    "a list": [GOOD],
    "nothing": "",
    "cut off": Reply(json.dumps(GOOD), "length", Usage(1, 1), 0.0),
    "refused": Reply("I cannot help with that", "refused", Usage(1, 1), 0.0),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_an_unusable_reply_is_asked_about_once_and_then_fails_the_step(asking, bad):
    answer, provider = asking(bad, GOOD)
    assert answer.value == KernelReply(**GOOD)
    assert [turn.role for turn in provider.requests[1].messages] == ["user", "assistant", "user"]
    assert "cannot be used" in provider.requests[1].messages[2].text
    assert [request.place.attempt for request in provider.requests] == [0, 1]
    failed, provider = asking(bad, bad)
    assert isinstance(failed, RoleFailed)
    assert len(provider.requests) == 2


def test_what_else_is_wrong_with_a_reply_is_asked_about_too(asking):
    answer, provider = asking(GOOD, {**GOOD, "plan": "fuse"}, check=lambda value: "" if value.plan == "fuse" else "no!")
    assert answer.value.plan == "fuse"
    assert "no!" in provider.requests[1].messages[2].text


def test_another_form_that_is_allowed_is_taken(asking):
    answer, _ = asking(GOOD, reply=EditReply, also=(KernelReply,))
    assert isinstance(answer.value, KernelReply)


def test_no_reply_at_all_fails_the_step(asking):
    failed, provider = asking(fault("rejected"))
    assert isinstance(failed, RoleFailed)
    assert "rejected" in failed.message
    assert len(provider.requests) == 1


def test_a_refused_key_concerns_more_than_the_step(asking):
    with pytest.raises(ModelFault):
        asking(fault("credentials"))


@pytest.mark.parametrize("reply", [KernelReply, EditReply, RepairAdvice, OptimiseAdvice, Prediction])
def test_schemas_are_what_structured_outputs_take(reply):
    """Every object is closed, and requires all of its fields."""
    pending = [schema_of(reply), *schema_of(reply).get("$defs", {}).values()]
    for schema in pending:
        assert schema["additionalProperties"] is False
        assert sorted(schema["required"]) == sorted(schema["properties"])
        assert all("default" not in field for field in schema["properties"].values())


def test_edits_are_made_one_after_the_other():
    edits = [Edit(find="a = 1", replace="a = 2"), Edit(find="a = 2", replace="a = 3")]
    assert apply_edits("a = 1\nb = 1\n", edits) == ("a = 3\nb = 1\n", "")


@pytest.mark.parametrize(("find", "count"), [("c", 0), ("= 1", 2), ("", 0)])
def test_an_edit_must_fit_once(find, count):
    source, problem = apply_edits("a = 1\nb = 1\n", [Edit(find=find, replace="")])
    assert source == "a = 1\nb = 1\n"
    assert f"occurs {count} times" in problem


def test_a_fence_around_a_source_is_taken_off():
    assert unfenced("```python\nx = 1\n```") == "x = 1\n"
    assert unfenced("x = '''\n```\n'''") == "x = '''\n```\n'''\n"
