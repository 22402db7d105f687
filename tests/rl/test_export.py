"""Exports: what may be a good answer, what is left out and why, and files that say the same in every form."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernelwright.cli import cli
from kernelwright.datasets import load_suite
from kernelwright.errors import MissingToolError, UsageError
from kernelwright.records import Status
from kernelwright.rl import KINDS, ExportPlan, export_dataset
from kernelwright.rl import _export as module

sys.path.insert(0, str(Path(__file__).parent))

from export_world import CHECKER, HERE, World, machine, reference

PLANTED = reference("F.relu").replace("hidden", "outcome").replace("ROWS", "BATCH").replace("16", "99")
RELU_SWAPPED = "\n".join([*PLANTED.splitlines()[2::-1], *PLANTED.splitlines()[3:]])  # imports in another order
JSONL = ExportPlan(formats=("jsonl",))


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def export(world, tmp_path):
    """Exports the world; gives the report and a function that reads the rows of a kind."""

    def run(name="out", **plan):
        folder = tmp_path / name
        report = export_dataset(world.store, folder, ExportPlan(**{"formats": ("jsonl",), **plan}))

        def rows(kind, split="train"):
            return [json.loads(line) for line in (folder / f"{kind}-{split}.jsonl").read_text().splitlines()]

        return report, rows

    return run


def filled(world):
    """A store with a bit of everything."""
    softmax = world.problem("softmax", "torch.softmax", category="softmax")
    relu = world.problem("relu", "F.relu", category="pointwise")
    run = world.run(softmax, relu, recipe="default", coder="openai:some-model")
    first = world.judge(softmax, low=1.2, run=run, step=0, confirmed=False, action={"mode": "new"})
    second = world.judge(softmax, low=2.0, run=run, step=1, parents=(first.sha256,), operator="improve")
    world.judge(softmax, candidate=second, low=1.9, run=run, step=1)
    world.judge(softmax, status=Status.INCORRECT_NUMERICAL, run=run, step=2, operator="improve")
    world.judge(relu, low=1.4, run=run, step=0)
    world.judge(relu, status=Status.COMPILE_ERROR, run=run, step=1)
    world.advise(run, first, "use tiles")
    return softmax, relu, run


# -------------------------------------------------------------------------------------------- what is exported


def test_only_right_and_confirmed_kernels_are_good_answers(world, export):
    problem = world.problem()
    good = world.judge(problem)
    timed = world.judge(problem, confirmed=False)
    refused = world.judge(problem, status=Status.REWARD_HACK)
    withdrawn = world.judge(problem, quarantine="it read the answer")
    fallen = world.judge(problem)
    world.judge(problem, candidate=fallen, status=Status.INCORRECT_NUMERICAL)
    elsewhere = world.judge(problem)
    world.judge(problem, candidate=elsewhere, status=Status.REWARD_HACK, environment=machine("another cpu"))
    report, rows = export()
    assert [row["candidate"] for row in rows("sft")] == [good.sha256]
    assert report.dropped["sft: not right and confirmed"] == 6
    assert {row["chosen_candidate"] for row in rows("preferences")} == {good.sha256}
    rejected = {row["rejected_candidate"] for row in rows("preferences")}
    assert refused.sha256 in rejected
    assert rejected.isdisjoint({timed.sha256, withdrawn.sha256})


def test_a_kernel_whose_confirmation_was_withdrawn_counts_again_once_it_is_confirmed_anew(world, export):
    problem = world.problem()
    kernel = world.judge(problem, quarantine="the machine was busy")
    assert export("before")[1]("sft") == []
    world.judge(problem, candidate=kernel)
    assert len(export("after")[1]("sft")) == 1


def test_what_was_judged_on_an_earlier_text_of_the_problem_is_left_out(world, export):
    world.judge(world.problem("softmax", "torch.softmax"))
    world.problem("softmax", "torch.sigmoid")
    report, rows = export()
    assert rows("sft") == []
    assert report.counts["prompts"] == {"train": 1}


def test_a_triple_asks_for_the_kernel_and_answers_in_the_form_that_was_asked_for(world, export):
    problem = world.problem("gelu", "F.gelu", category="activation")
    kernel = world.judge(problem, low=1.5, note="one loop", knobs={"N": 4}, source="N = 1\nKNOBS = {'N': [1, 4]}\n")
    (row,) = export()[1]("sft")
    assert [message["role"] for message in row["prompt"]] == ["system", "user"]
    assert "F.gelu" in row["prompt"][1]["content"]
    reply = json.loads(row["completion"][0]["content"])
    assert reply == {"plan": "one loop", "source": row["kernel"]}
    assert "N = 4" in row["kernel"]  # as it was judged
    assert row["kernel_sha256"] == hashlib.sha256(row["kernel"].encode()).hexdigest()
    assert row["candidate"] == kernel.sha256
    assert row["reference"] == problem.source
    assert row["reference_sha256"] == problem.sha256
    assert (row["speedup_eager_low"], row["speedup_eager"], row["speedup_eager_high"]) == (1.5, 1.6, 1.7)
    assert (row["status"], row["stage"], row["checked_only"]) == ("PASSED", "confirmed", False)
    assert (row["category"], row["licence"], row["environment"]) == ("activation", "Apache-2.0", HERE.id)


def test_a_prompt_that_was_sent_for_a_new_kernel_is_the_one_that_is_given(world, export):
    problem = world.problem()
    run = world.run(problem)
    prompt = "[system]\nBe quick.\n\n[user]\nWrite the kernel."
    call = world.reply(run, problem, prompt=prompt, text='{"plan": "p", "source": "s"}')
    sha = hashlib.sha256(prompt.encode()).hexdigest()
    world.judge(problem, run=run, step=0, prompt_sha256=sha, operator="new", action={"mode": "new", "call": call})
    world.judge(problem, run=run, step=1, prompt_sha256=sha, operator="improve")
    _, rows = export()
    by_source = {row["prompt_from"]: row["prompt"] for row in rows("sft")}
    assert by_source["call"][1] == {"role": "user", "content": "Write the kernel."}
    assert by_source["rendered"][1]["content"] != "Write the kernel."
    steps = rows("trajectories")[0]["steps"]
    assert steps[0]["prompt"] == prompt
    assert steps[0]["reply"] == '{"plan": "p", "source": "s"}'
    assert steps[1]["prompt"] == steps[1]["reply"] == ""


def test_pairs_are_of_one_environment_and_say_why(world, export):
    problem = world.problem()
    fast, slow = world.judge(problem, low=3.0), world.judge(problem, low=1.5, confirmed=False)
    near = world.judge(problem, low=2.95)
    wrong = world.judge(problem, status=Status.INCORRECT_NUMERICAL, reason="off by 3 units")
    unchecked = world.judge(problem, status=Status.UNCHECKED)
    there = world.judge(problem, low=1.01, environment=machine("another cpu"))
    triton = world.judge(problem, low=1.0, backend="triton")
    _, rows = export()
    found = {(row["chosen_candidate"], row["rejected_candidate"]): row["why"] for row in rows("preferences")}
    assert found == {
        (fast.sha256, slow.sha256): "faster",
        (near.sha256, slow.sha256): "faster",
        (fast.sha256, wrong.sha256): "right over refused",
        (near.sha256, wrong.sha256): "right over refused",
    }
    assert not {unchecked.sha256, there.sha256, triton.sha256} & {sha for pair in found for sha in pair}
    for row in rows("preferences"):
        faster = row["why"] == "faster"
        assert not faster or row["chosen_speedup_low"] > row["rejected_speedup_high"]
        assert row["rejected_reason"] == ("" if faster else "off by 3 units")


def test_no_more_pairs_than_asked_for_and_of_both_sorts(world, export):
    problem = world.problem()
    for low in (5.0, 4.0, 3.0, 2.0):
        world.judge(problem, low=low)
        world.judge(problem, status=Status.TIMEOUT)
    report, rows = export(most_pairs=6)
    found = [row["why"] for row in rows("preferences")]
    assert len(found) == 6
    assert set(found) == {"faster", "right over refused"}
    assert report.dropped["preferences: more pairs of a problem than asked for"] == 6 + 16 - 6


def test_prompts_have_what_trainers_pass_to_rewards(world, export):
    problem = world.problem()
    world.judge(problem, low=2.0)
    world.problem("untried")
    _, rows = export()
    tried, untried = rows("prompts")
    assert (tried["problem"], tried["backend"], tried["data_source"]) == (problem.id, "cpp", "kernelwright")
    assert tried["reward_model"] == {"style": "rule", "ground_truth": problem.id}
    assert tried["extra_info"] == {"index": 0, "split": "train", "problem": problem.id, "backend": "cpp"}
    assert tried["baseline_eager_ms"] == pytest.approx(0.5 * 2.1)
    assert untried["environment"] is None
    assert untried["extra_info"]["index"] == 1
    _, rows = export("gpu", backends=("cuda", "triton"))
    assert [row["backend"] for row in rows("prompts")] == ["cuda", "triton"] * 2


def test_trajectories_tell_runs_in_order_with_what_each_attempt_earned(world, export):
    softmax, relu, run = filled(world)
    world.judge(relu, low=9.0, run=run, step=2, quarantine="it read the answer")
    _, rows = export()
    found = {row["problem"]: row for row in rows("trajectories")}
    steps = found[softmax.id]["steps"]
    assert [step["mode"] for step in steps] == ["new", "confirm", "confirm", "improve"]
    assert [step["status"] for step in steps] == ["PASSED"] * 3 + ["INCORRECT_NUMERICAL"]
    assert steps[1]["parents"] == [steps[0]["candidate"]]
    assert steps[1]["reward"] > steps[0]["reward"] > 0.1
    assert steps[3]["reward"] == 0.0
    assert json.loads(steps[0]["advice"])["plan"] == "use tiles"
    assert found[softmax.id]["run"] == run
    withdrawn = found[relu.id]["steps"][-1]
    assert (withdrawn["withdrawn"], withdrawn["reward"]) == (True, 0.0)


def test_kernels_that_cannot_be_timed_come_only_when_asked_for_and_without_a_time(world, export):
    problem = world.problem()
    kernel = world.judge(problem, low=None, environment=CHECKER, backend="triton")
    world.judge(problem, low=None, environment=CHECKER, backend="triton", quarantine="it read the answer")
    assert export("without")[1]("sft") == []
    report, rows = export("with", include_checked=True)
    (row,) = rows("sft")
    assert (row["candidate"], row["checked_only"], row["stage"]) == (kernel.sha256, True, "checked")
    assert [row[name] for name in ("speedup_eager", "speedup_compile", "latency_ms")] == [None] * 3
    world.judge(problem, status=Status.COMPILE_ERROR, environment=CHECKER, backend="triton")
    (pair,) = export("pairs", include_checked=True)[1]("preferences")
    assert (pair["checked_only"], pair["chosen_speedup"]) == (True, None)
    assert any("never timed" in warning for warning in report.warnings)


# -------------------------------------------------------------------------------------------------- curation


def test_curation_keeps_what_is_fast_and_shortly_explained(world, export):
    problem = world.problem()
    world.judge(problem, low=0.9, note="no")
    world.judge(problem, low=1.1, note="so")
    world.judge(problem, low=2.9, note="a long story about how it came about")
    short = world.judge(problem, low=3.0, note="a short story")
    world.judge(problem, low=9.0, note="")
    report, rows = export(curate="concur")
    assert [row["candidate"] for row in rows("sft")] == [short.sha256]
    assert {rule: number for rule, number in report.dropped.items() if "concur" in rule} == {
        "concur: no reasoning": 1,
        "concur: slower than 1 times eager": 1,
        "concur: not among the fastest 50%": 1,
        "concur: another kernel has shorter reasoning": 1,
    }
    assert len(export("two", curate="concur", per_problem=2)[1]("sft")) == 2
    assert export("none", curate="concur", min_speedup=10.0)[1]("sft") == []


def test_curation_balances_categories(world, export):
    for number in range(9):
        world.judge(world.problem(f"many{number}", category="pointwise"), note="x" * (number + 1))
    for category in ("softmax", "pooling"):
        world.judge(world.problem(category, category=category))
    report, rows = export(curate="concur", balance=3.0)
    found = [row["category"] for row in rows("sft")]
    assert {name: found.count(name) for name in found} == {"pointwise": 3, "softmax": 1, "pooling": 1}
    assert {len(row["reasoning"]) for row in rows("sft") if row["category"] == "pointwise"} == {1, 2, 3}
    assert report.dropped["concur: its category has more than its share"] == 6


def test_a_kernel_confirmed_on_two_machines_counts_once(world, export):
    problem = world.problem()
    kernel = world.judge(problem)
    world.judge(problem, candidate=kernel, environment=machine("another cpu"))
    assert len(export("all")[1]("sft")) == 2
    assert len(export("few", curate="concur", per_problem=5)[1]("sft")) == 1


# ------------------------------------------------------------------------------------ what is kept out of them


def test_a_planted_evaluation_problem_is_kept_out_of_every_kind(world, export, tmp_path):
    run = world.run(planted := world.problem("theirs", "F.relu"), own := world.problem("ours", "F.gelu"))
    for problem in (planted, own):
        world.judge(problem, run=run)
        world.judge(problem, run=run, status=Status.RUNTIME_ERROR)
    (tmp_path / "evaluation.py").write_text(RELU_SWAPPED)
    report, rows = export(decontaminate=(str(tmp_path / "evaluation.py"),))
    for kind in KINDS:
        assert {row["problem"] for row in rows(kind)} == {own.id}, kind
    (found,) = report.contaminated
    assert (found.problem, found.match, found.similarity) == (planted.id, "evaluation.py", 1.0)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["contaminated"] == [found.model_dump()]
    assert manifest["settings"]["decontaminate"] == ["evaluation.py"]
    assert len(export("folder", decontaminate=(str(tmp_path),))[0].contaminated) == 1


def test_suites_are_kept_out_by_name(world, export):
    problem = next(problem for problem in load_suite() if problem.name == "softmax")
    world.store.record_problem(problem)
    report, rows = export(decontaminate=("kernelwright",))
    assert rows("prompts") == []
    assert report.contaminated[0].match == problem.id
    with pytest.raises(UsageError, match="no suite, problem file or folder"):
        export("other", decontaminate=("nobodys",))


def test_prompts_show_no_exemplar_that_is_kept_out(world, export, tmp_path):
    from kernelwright.prompts import read_exemplar

    exemplar = read_exemplar("cpp", "pointwise")
    world.judge(world.problem("gelu", "F.gelu", category="pointwise"))
    (tmp_path / "evaluation.py").write_text(exemplar.problem)
    shown = export("with")[1]("prompts")[0]["prompt"][1]["content"]
    hidden = export("without", decontaminate=(str(tmp_path / "evaluation.py"),))[1]("prompts")[0]["prompt"][1][
        "content"
    ]
    assert exemplar.reference.strip() in shown
    assert exemplar.reference.strip() not in hidden


def test_licences_are_known_by_suite_and_can_be_asked_for(world, export, tmp_path):
    world.judge(world.problem("ours"))
    world.judge(world.problem("theirs", suite="KernelBench"))
    world.judge(world.problem("mine", suite="file"))
    report, rows = export()
    assert {row["problem"]: row["licence"] for row in rows("sft")} == {
        "kernelwright/level1/ours": "Apache-2.0",
        "KernelBench/level1/theirs": "MIT",
        "file/level1/mine": "unknown",
    }
    assert any("licence" in warning for warning in report.warnings)
    assert "**Some references have no known licence" in (tmp_path / "out" / "README.md").read_text()
    report, rows = export("few", licences=("MIT", "Apache-2.0"))
    assert {row["licence"] for row in rows("sft")} == {"MIT", "Apache-2.0"}
    assert report.dropped["problem: another licence"] == 1


def test_nothing_names_a_place_on_the_machine_or_a_key(world, export, tmp_path):
    problem = world.problem()
    run = world.run(problem, coder="replay:/home/ada/secret.jsonl")
    world.judge(problem, run=run, note="see /home/ada/notes.txt and -I/opt/things/include", author="/home/ada/me")
    world.judge(problem, run=run, source="# from /home/ada/kernels/fast.py\n")
    world.judge(problem, run=run, source="KEY = 'sk-" + "a1B2" * 8 + "'\n")
    world.judge(
        problem, run=run, status=Status.COMPILE_ERROR, reason="/tmp/build-1/k.cpp:3: error, Bearer " + "abcd1234" * 4
    )
    prompt = "[system]\nRun in /root/work.\n\n[user]\nRead file:///home/ada/x.py"
    call = world.reply(run, problem, prompt=prompt, text="I read ~/.netrc and /home/ada/x.py")
    world.judge(
        problem, run=run, step=1, prompt_sha256=hashlib.sha256(prompt.encode()).hexdigest(), action={"call": call}
    )
    report, rows = export()
    assert len(rows("sft")) == 2  # those whose code names nothing
    assert report.dropped["kernel: its source names a place on a machine, or a key"] >= 2
    for file in (tmp_path / "out").iterdir():
        text = file.read_text()
        for secret in ("ada/", "/root", "/tmp", "/opt", "a1B2a1B2", "abcd1234", "netrc", str(tmp_path)):
            assert secret not in text, (file.name, secret)
    assert "<path>" in rows("sft")[0]["reasoning"] + rows("sft")[1]["reasoning"]


def test_a_problem_that_names_a_place_is_left_out(world, export):
    world.judge(world.problem("softmax", "F.relu", source=reference() + "# see /home/ada/problem.py\n"))
    report, rows = export()
    assert all(rows(kind) == [] for kind in KINDS)
    assert report.dropped["problem: its source names a place on a machine, or a key"] == 1


def test_division_in_code_is_no_path(world, export):
    source = "N = 1\nx = a[0]/b/c + (n)/data/work\n# rows / columns, x/y/z\ninclude = '#include <sys/mman.h>'\n"
    world.judge(world.problem(), source=source)
    assert [row["kernel"] for row in export()[1]("sft")] == [source]


# ---------------------------------------------------------------------------------------------- splits, files


def test_whole_problems_are_held_out_with_their_variants(world, export):
    for number in range(30):
        problem = world.problem(f"p{number}")
        world.judge(problem)
        world.store.record_problem(problem.at_variant(1))
    report, rows = export(held_out=0.3)
    parts = [{row["problem"].partition("@")[0] for row in rows("prompts", split)} for split in ("train", "held_out")]
    assert parts[0].isdisjoint(parts[1])
    assert len(parts[0] | parts[1]) == 30
    assert 3 <= len(parts[1]) <= 16
    for kind in ("sft", "prompts"):
        assert {row["problem"].partition("@")[0] for row in rows(kind, "held_out")} == parts[1]
    more, _ = export("more", held_out=0.5)
    assert more.counts["prompts"]["held_out"] > report.counts["prompts"]["held_out"]
    assert {row["extra_info"]["split"] for row in rows("prompts", "held_out")} == {"held_out"}


def test_equal_stores_give_equal_bytes(world, tmp_path):
    pytest.importorskip("pyarrow")
    filled(world)
    plan = ExportPlan(held_out=0.4, curate="concur")
    for name in ("one", "two"):
        export_dataset(world.store, tmp_path / name, plan)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(names) == 4 * 2 * 2 + 2
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


@pytest.mark.parametrize("formats", [("parquet", "jsonl"), ("jsonl",)], ids=["parquet", "jsonl"])
def test_what_datasets_loads_agrees_with_the_manifest(world, tmp_path, monkeypatch, formats):
    pytest.importorskip("datasets")
    filled(world)
    out = tmp_path / "out"
    report = export_dataset(world.store, out, ExportPlan(formats=formats))
    manifest = json.loads((out / "manifest.json").read_text())
    for file in manifest["files"]:
        content = (out / file["path"]).read_bytes()
        assert (file["sha256"], file["size_bytes"]) == (hashlib.sha256(content).hexdigest(), len(content))
    assert {file["path"] for file in manifest["files"]} == {path.name for path in out.iterdir()} - {"manifest.json"}
    loaded = _loaded(out, tmp_path, monkeypatch)
    for kind in KINDS:
        rows = loaded[kind]["train"]
        assert len(rows["rows"]) == report.counts[kind]["train"] == manifest["counts"][kind]["train"] > 0
        assert rows["columns"] == list(manifest["schema"][kind])
        assert rows["rows"] == [json.loads(line) for line in (out / f"{kind}-train.jsonl").read_text().splitlines()]


def _loaded(folder, tmp_path, monkeypatch):
    """Every configuration as ``datasets`` reads it, in a process of its own: it reads its settings when imported."""
    program = (
        "import datasets, json, sys\n"
        "found = {}\n"
        "for kind in sys.argv[2:]:\n"
        "    loaded = datasets.load_dataset(sys.argv[1], kind)\n"
        "    found[kind] = {s: {'rows': list(r), 'columns': r.column_names} for s, r in loaded.items()}\n"
        "print(json.dumps(found))\n"
    )
    for name in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_DATASETS_DISABLE_PROGRESS_BARS"):
        monkeypatch.setenv(name, "1")
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder), *KINDS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_error_half_way_leaves_nothing(world, tmp_path, monkeypatch):
    filled(world)

    def broken(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "trajectories", broken)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        export_dataset(world.store, tmp_path / "out", JSONL)
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_holds_something_is_refused(world, tmp_path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    for folder in (full, empty):
        folder.mkdir()
    (full / "mine.txt").write_text("mine")
    with pytest.raises(UsageError, match="not an empty folder"):
        export_dataset(world.store, full, JSONL)
    assert (full / "mine.txt").read_text() == "mine"
    export_dataset(world.store, empty, JSONL)
    assert (empty / "manifest.json").exists()


def test_a_store_without_kernels_gives_empty_files_and_a_card(world, export, tmp_path):
    report, rows = export()
    assert all(rows(kind) == [] for kind in KINDS)
    assert "configs:" not in (tmp_path / "out" / "README.md").read_text()
    assert report.dropped == {}


def test_parquet_without_pyarrow_says_what_to_install(world, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingToolError) as caught:
        export_dataset(world.store, tmp_path / "out", ExportPlan())
    assert "pip install 'kernelwright[data]'" in caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_reply_that_is_no_unicode_is_written(world, export):
    problem = world.problem()
    run = world.run(problem)
    call = world.reply(run, problem, prompt="[system]\ns\n\n[user]\nu", text="half \ud83d of one")
    world.judge(problem, run=run, action={"call": call})
    assert export()[1]("trajectories")[0]["steps"][0]["reply"].startswith("half \ufffd")


def test_one_problem_at_a_time_is_read(world, export, monkeypatch):
    for number in range(5):
        world.judge(world.problem(f"p{number}"))
    asked = []
    original = type(world.store).evaluations

    def counting(self, *arguments, **named):
        asked.append(named.get("problem"))
        return original(self, *arguments, **named)

    monkeypatch.setattr(type(world.store), "evaluations", counting)
    export()
    assert asked == [f"kernelwright/level1/p{number}" for number in range(5)]


# ----------------------------------------------------------------------------------------------- command line


def test_the_command_writes_the_folder_and_says_what_is_in_it(world, tmp_path):
    filled(world)
    out = tmp_path / "data"
    asked = ["rl", "export", "--store", str(world.path), "--out", str(out), "--format", "jsonl", "--kind", "prompts"]
    done = CliRunner().invoke(cli, [*asked, "--kind", "sft", "--held-out", "0.5", "--json"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert list(said["counts"]) == ["sft", "prompts"]
    assert {path.name for path in out.iterdir()} == {
        "README.md",
        "manifest.json",
        *(f"{kind}-{split}.jsonl" for kind in ("sft", "prompts") for split in ("train", "held_out")),
    }
    again = CliRunner().invoke(cli, asked)
    assert again.exit_code == 2
    shown = CliRunner().invoke(
        cli, [*asked[:5], str(tmp_path / "more"), *asked[6:], "--decontaminate", str(out.parent)]
    )
    assert shown.exit_code == 2  # a folder without problems
    assert "holds no problem" in shown.output


def test_importing_the_room_loads_none_of_what_trains_or_writes():
    program = (
        "import sys, kernelwright.rl; print([m for m in ('torch', 'pyarrow', 'datasets', 'trl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
