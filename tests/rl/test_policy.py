"""The policy as a Coder: its arithmetic is that of transformers, it writes nothing but legal schedules."""

from __future__ import annotations

import json
import math
import random
import shutil

import pytest
from landscapes import captured, key_of

from kernelwright import codegen
from kernelwright.agents import END, PolicyCard, StepContext, Workbench, coder_from_spec
from kernelwright.agents.policy_coder import decode
from kernelwright.agents.policy_model import PolicyModel
from kernelwright.agents.policy_words import UNKNOWN, describe_problem, read_schedule, schedule_words
from kernelwright.datasets import find_problem
from kernelwright.errors import KernelwrightError, UsageError
from kernelwright.rl._tiny import choices_of, save_policy, schedule_model, vocabulary_of


def described(name):
    problem = find_problem(name)
    graph = codegen.Graph.from_json(captured(*key_of(problem)))
    space = codegen.schedule_space(graph)
    return problem, space, describe_problem(graph, space)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    """An untrained policy for two problems, in a folder."""
    import torch

    torch.manual_seed(7)
    problems = [described(name) for name in ("level1/softmax", "level2/gemm_bias_gelu")]
    choices = choices_of(space for _, space, _ in problems)
    vocabulary = vocabulary_of((words for _, _, words in problems), choices)
    model, _ = schedule_model(vocabulary)
    folder = tmp_path_factory.mktemp("policies") / "policy"
    save_policy(folder, model, PolicyCard(vocabulary=vocabulary))
    return folder, model


def context_for(problem, attempts=(), **more):
    bench = Workbench(lambda entry, payload: captured(*key_of(problem)))
    return StepContext(problem=problem, backend="cpp", round=0, rounds=4, bench=bench, attempts=attempts, **more)


def test_logits_are_those_of_transformers(policy):
    import torch

    folder, model = policy
    read = PolicyModel.load(folder)
    _, space, words = described("level2/gemm_bias_gelu")
    asked = [*words, *schedule_words({name: values[-1] for name, values in space.items()}, space)[:3], "no such word"]
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([read.tokens(asked)])).logits[0, -1].numpy()
    assert read.logits(asked) == pytest.approx(wanted, abs=1e-4)
    assert read.tokens(["no such word"]) == read.tokens([UNKNOWN])


def test_lengths_that_lie_near_each_other_share_a_word():
    """So that what was learned at 500 and 700 columns reaches 600; where they divide is another word."""

    def lengths(columns):
        _, _, words = described(f"level1/min_with_indices@ROWS=64,COLUMNS={columns}")
        return [word for word in words if word.startswith("columns~")]

    assert lengths(512) == ["columns~9", "columns~9"]
    assert lengths(600) == lengths(700) == ["columns~9", "columns~9.5"]
    assert lengths(800) == ["columns~9.5", "columns~10"]
    assert lengths(1) == ["columns~0", "columns~0"]


def test_a_trained_policy_and_the_one_that_is_asked_agree(policy, tmp_path):
    """What is legal, and the lean to the default, are the same in training as in use; so are the probabilities."""
    import torch

    from kernelwright.rl._tiny import legal_model

    _, space, words = described("level2/gemm_bias_gelu")
    card = PolicyModel.load(policy[0]).card
    defaults = tuple(f"{name}={values[0]}" for name, values in space.items())
    folder = tmp_path / "leaning"
    save_policy(folder, policy[1], card.model_copy(update={"defaults": defaults, "lean": 2.0}))
    model, read = legal_model(folder), PolicyModel.load(folder)
    schedule = {name: values[-1] for name, values in space.items()}
    written = schedule_words(schedule, space)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([read.tokens([*words, *written])])).logits[0]
    for place, (name, values) in enumerate(space.items()):
        allowed = [f"{name}={value}" for value in values]
        wanted = read.log_probabilities([*words, *written[:place]], allowed)
        found = torch.log_softmax(logits[len(words) - 1 + place], dim=0)[read.tokens(allowed)]
        assert found.numpy() == pytest.approx(wanted, abs=1e-3)
    ends = torch.softmax(logits[len(words) - 1 + len(space)], dim=0)
    assert float(ends[read.tokens([END])[0]]) == pytest.approx(1.0)
    plain = PolicyModel.load(policy[0]).log_probabilities(words, [f"fusion={value}" for value in space["fusion"]])
    assert read.log_probabilities(words, [f"fusion={value}" for value in space["fusion"]])[0] > plain[0]


def test_probabilities_are_over_what_is_allowed(policy):
    read = PolicyModel.load(policy[0])
    _, space, words = described("level1/softmax")
    name, values = next(iter(space.items()))
    logs = read.log_probabilities(words, [f"{name}={value}" for value in values])
    assert sum(math.exp(log) for log in logs) == pytest.approx(1.0)
    assert read.log_probabilities(words, [f"{name}={values[0]}", "never heard"])[1] == -math.inf
    with pytest.raises(UsageError, match="no word for"):
        read.log_probabilities(words, ["never heard"])
    with pytest.raises(UsageError, match="too many words"):
        read.log_probabilities(words * 10, [f"{name}={values[0]}"])


@pytest.mark.parametrize("name", ["level1/softmax", "level2/gemm_bias_gelu", "level1/group_norm"])
def test_what_a_policy_writes_is_legal(policy, name):
    """Also for a problem with choices that it has no words for: they are left at their defaults."""
    read = PolicyModel.load(policy[0])
    _, space, words = described(name)
    foreign = {choice for choice in space if not read.knows(f"?{choice}")}
    assert bool(foreign) == (name == "level1/group_norm")
    drawn = []
    for seed in range(5):
        schedule = decode(read, words, space, random.Random(seed))
        assert list(schedule) == list(space)
        assert all(schedule[choice] in values for choice, values in space.items())
        assert all(schedule[choice] == space[choice][0] for choice in foreign)
        assert decode(read, words, space, random.Random(seed)) == schedule
        drawn.append(schedule)
    assert any(schedule != drawn[0] for schedule in drawn)
    assert decode(read, words, space) == decode(read, words, space)


def test_words_mean_the_schedule_that_they_were_made_of():
    _, space, words = described("level2/gemm_bias_gelu")
    rng = random.Random(3)
    for _ in range(20):
        schedule = {name: rng.choice(values) for name, values in space.items()}
        written = schedule_words(schedule, space)
        assert read_schedule(written, space) == schedule
        assert read_schedule(written[:-1], space) is None
        assert read_schedule([written[1], written[0], *written[2:]], space) is None
        assert read_schedule([*written[:-2], "tile=1x1", END], space) is None
    assert [word[1:] for word in words if word.startswith("?")] == list(space)
    assert not any("gemm_bias_gelu" in word for word in words)


def test_the_description_tells_sizes_apart():
    """What a policy may learn from is not the same for two sizes of a problem."""
    assert described("level1/softmax")[2] != described("level1/softmax@COLUMNS=4096")[2]


def test_a_policy_is_a_coder(policy):
    coder = coder_from_spec(f"policy:{policy[0]}")
    problem = find_problem("level1/softmax")
    proposal = coder.propose(context_for(problem))
    assert proposal.candidate is not None
    assert proposal.candidate.author == "policy"
    assert "class ModelNew" in proposal.candidate.source
    _, space, words = described("level1/softmax")
    assert proposal.action["schedule"] == decode(PolicyModel.load(policy[0]), words, space)
    assert coder.propose(context_for(problem)).candidate == proposal.candidate


def test_it_never_proposes_a_kernel_twice_and_ends(policy):
    from campaign_fakes import make_evaluation

    from kernelwright.agents import Attempt

    coder, problem = coder_from_spec(f"policy:{policy[0]}"), find_problem("level1/softmax")
    attempts = []
    for number in range(200):
        proposal = coder.propose(context_for(problem, tuple(attempts)))
        if proposal.candidate is None:
            break
        evaluation = make_evaluation(proposal.candidate)
        attempts.append(Attempt(number, f"e{number}", proposal.candidate, evaluation.verdict, proposal.action))
    hashes = [attempt.candidate.sha256 for attempt in attempts]
    assert len(set(hashes)) == len(hashes) > 5
    assert proposal.candidate is None
    assert "has been tried" in proposal.rationale


def test_it_writes_no_other_language(policy):
    with pytest.raises(UsageError, match="writes no kernels for --backend triton"):
        coder_from_spec(f"policy:{policy[0]}", "triton")


def _cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _huge_header(folder):
    (folder / "model.safetensors").write_bytes((1 << 60).to_bytes(8, "little") + b"{}")


def _nan(folder):
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-4] + b"\x00\x00\xc0\x7f")


def _other_architecture(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "mamba"}))


def _more_words(folder):
    path = folder / "policy.json"
    card = json.loads(path.read_text())
    path.write_text(json.dumps({**card, "vocabulary": [*card["vocabulary"], "one more"]}))


def _no_card(folder):
    (folder / "policy.json").unlink()


@pytest.mark.parametrize(
    "damage", [_cut_weights, _huge_header, _nan, _other_architecture, _more_words, _no_card], ids=lambda f: f.__name__
)
def test_a_damaged_policy_is_an_error_that_says_how_to_make_one(policy, tmp_path, damage):
    folder = tmp_path / "policy"
    shutil.copytree(policy[0], folder)
    damage(folder)
    with pytest.raises(UsageError, match="no schedule policy") as caught:
        PolicyModel.load(folder)
    assert "rl train" in caught.value.hint


def test_a_policy_needs_a_folder():
    with pytest.raises(KernelwrightError, match="needs a folder"):
        coder_from_spec("policy")
