"""Training of models that write kernels: by imitation and by rewards, the tiny one and one in a folder."""

from __future__ import annotations

import json
from contextlib import nullcontext

import pytest
from click.testing import CliRunner

from kernelwright.cli import cli
from kernelwright.errors import KernelwrightError, MissingToolError, UsageError
from kernelwright.records import Status
from kernelwright.rl import TrainPlan, begin, demonstrations, require_weights, run_training
from kernelwright.rl._progress import read_lines
from kernelwright.rl._scoring import Scored
from kernelwright.rl._tiny import byte_model

PROMPT = [{"role": "system", "content": "write kernels"}, {"role": "user", "content": "softmax, please"}]
SOFTMAX = "kernelwright/level1/softmax"


def chat(answer, problem=SOFTMAX):
    return {"prompt": PROMPT, "completion": [{"role": "assistant", "content": answer}], "problem": problem}


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "chats.jsonl"
    rows = [chat("class ModelNew: pass\n" * 3), chat("class ModelNew: ...\n", "kernelwright/level1/gelu")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def local_folder(tmp_path_factory):
    """A model as transformers saves it, with no chat template and no padding: such folders are about."""
    import torch

    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("models") / "local"
    model, tokenizer = byte_model(hidden=32)
    tokenizer.chat_template = None
    tokenizer.pad_token = None
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trained(tmp_path, scorer=None, **more):
    folder = tmp_path / "training"
    begin(TrainPlan(**{"task": "kernel", "steps": 6, "save_every": 3, "prompts": 1, **more}), folder)
    return run_training(folder, lambda: nullcontext(scorer)), folder


def test_the_tiny_model_learns_by_imitation(tmp_path, data):
    result, folder = trained(tmp_path, method="sft", data=str(data), learning_rate=5e-3, held_out=("level1/gelu",))
    assert result.finished
    assert result.last < result.first
    assert result.held_out_after < result.held_out_before
    assert [row["step"] for row in read_lines(folder / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    again = TrainPlan.load(folder).model_copy(update={"model": result.model, "steps": 1, "held_out": ("level1/gelu",)})
    begin(again, tmp_path / "again")
    loaded = run_training(tmp_path / "again", None)
    assert loaded.held_out_before == pytest.approx(result.held_out_after, rel=0.05)


def test_a_model_of_a_folder_learns_with_adapters(tmp_path, data, local_folder):
    """What is saved has them merged: it loads by itself."""
    from transformers import AutoModelForCausalLM

    result, _ = trained(
        tmp_path, method="sft", model=str(local_folder), data=str(data), learning_rate=2e-2, lora_rank=4
    )
    assert result.last < result.first
    loaded = AutoModelForCausalLM.from_pretrained(result.model)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    before = AutoModelForCausalLM.from_pretrained(local_folder)
    moved = [
        name
        for (name, one), (_, other) in zip(loaded.named_parameters(), before.named_parameters(), strict=True)
        if not bool((one == other).all())
    ]
    assert any("q_proj" in name for name in moved)


class Vowels:
    """Pays for how many of a kernel's letters are vowels; notes what it was asked."""

    def __init__(self):
        self.asked = []

    def score(self, requests):
        self.asked += requests
        return [
            Scored(
                reward=sum(letter in "aeiou" for letter in one.source) / max(1, len(one.source)),
                status=Status.PASSED,
                passed=True,
                feedback="more vowels",
            )
            for one in requests
        ]


@pytest.mark.parametrize("turns", [1, 2])
def test_a_writer_is_trained_by_rewards(tmp_path, turns, monkeypatch):
    """Completions of an untrained model hold no kernel: they earn nothing and are not asked about."""
    scorer = Vowels()
    result, folder = trained(
        tmp_path,
        scorer,
        method="grpo",
        problems=("level1/softmax",),
        held_out=("level1/gelu",),
        steps=2,
        group=2,
        turns=turns,
        completion_tokens=16,
    )
    assert result.finished
    assert scorer.asked == []
    assert (result.first, result.last, result.verdicts) == (0.0, 0.0, 0)
    assert (result.held_out_before, result.held_out_after) == (0.0, 0.0)
    assert (folder / "model" / "model.safetensors").exists()


def test_what_a_writer_writes_is_scored(tmp_path, monkeypatch):
    """As what the problem's own kernel: here every completion is taken for one."""
    from kernelwright.rl import _completions
    from kernelwright.rl.adapters import trl

    def found(text):
        return _completions.Found(source=text or "x", plan="", fault="")

    monkeypatch.setattr(trl, "kernel_of", found)
    scorer = Vowels()
    result, _ = trained(
        tmp_path, scorer, method="grpo", problems=("level1/softmax",), steps=3, group=4, completion_tokens=12
    )
    assert result.verdicts == 12 == len(scorer.asked)
    assert {one.problem for one in scorer.asked} == {"level1/softmax"}
    assert result.first is not None


def test_the_recorded_demonstration_is_one_to_learn_from():
    found = demonstrations("cudaforge")
    assert len(found) > 20
    for one in found:
        assert [message.role for message in one.prompt] == ["system", "user"]
        assert "class ModelNew" in one.completion[0].content
        assert one.problem.startswith("kernelwright/")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no demonstration"),
        ("{}\n", "not a demonstration"),
        ("not json\n", "not a demonstration"),
        ('{"prompt": "a", "completion": "b"}\n', "not a demonstration"),
        ('{"prompt": [{"role": "user"}], "completion": []}\n', "not a demonstration"),
    ],
)
def test_data_that_demonstrates_nothing_is_refused(tmp_path, text, said):
    (tmp_path / "data.jsonl").write_text(text)
    with pytest.raises(UsageError, match=said):
        demonstrations(str(tmp_path / "data.jsonl"))


def test_a_folder_without_data_or_model_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no sft\*.jsonl"):
        demonstrations(str(tmp_path))
    with pytest.raises(UsageError, match="cannot read"):
        demonstrations(str(tmp_path / "nothing.jsonl"))
    with pytest.raises(UsageError, match="not the folder of a model"):
        require_weights(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(MissingToolError, match="no weights in safetensors"):
        require_weights(str(tmp_path))


def test_a_folder_whose_model_would_run_code_is_refused(tmp_path, data, local_folder):
    """Code beside the weights is never imported."""
    import shutil

    folder = tmp_path / "hostile"
    shutil.copytree(local_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(KernelwrightError, match="cannot be loaded"):
        trained(tmp_path, method="sft", model=str(folder), data=str(data))
    assert not (tmp_path / "ran").exists()


def test_the_command_trains_on_the_demonstration(tmp_path):
    done = CliRunner().invoke(
        cli,
        [
            *("rl", "train", "--method", "sft", "--data", "cudaforge", "--steps", "2", "--prompts", "1"),
            *("--held-out", "level1/softmax", "--output", str(tmp_path / "out"), "--json"),
        ],
    )
    data = json.loads(done.stdout)
    assert data["finished"] is True
    assert data["steps"] == 2
    assert data["held_out_after"] < data["held_out_before"]
    assert (tmp_path / "out" / "model" / "config.json").exists()
