"""The documentation is true: its blocks run, its commands, options, settings and links exist, and nothing is left out.

A fenced block of README.md or docs/guide.md runs unless its info string says ``no-run``. ``sh`` and ``python`` blocks
must end with exit code 0, or with N where the info string has ``exit=N``; ``file=NAME`` writes the block to a file
instead. In a ``console`` block, lines after ``$`` are commands, and the lines below each are its standard output or its
standard error, in which ``...`` stands for anything. The blocks of a document run in order, in one empty folder.
``HASH`` stands for the kernel of the latest run that has one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from docs_commands import Commands

from kernelwright.cli import cli
from kernelwright.config import NAMES, Measurement
from kernelwright.evaluator import BASELINES
from kernelwright.evaluator.screen.rules import RULES
from kernelwright.records import ProblemMeta, Stage, Status

ROOT = Path(__file__).parents[1]
EXECUTED = (pytest.param("README.md", marks=pytest.mark.matrix(one_in=1)), "docs/guide.md")  # the first in each run
DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
GUIDE = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")

# What keeps a document's commands short; results are as right as ever, their intervals wider.
QUICK = {
    "ROUNDS": "1",
    "BASELINES": "eager",
}
METHOD = """
[measurement]
looks = [12]
window_ms = 0.5
pool_bytes = "16MiB"
check_trials = 2
confirm_max_pairs = 5
noise_bound = 0.3
"""  # on a busy machine a control strays far

FENCE = re.compile(r"^```(?P<info>[^`\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: its language, the words after it, its text, and the line on which that starts."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int

    @property
    def exit_code(self) -> int:
        return int(self.word("exit") or 0)

    def word(self, name: str) -> str:
        return next((word.partition("=")[2] for word in self.words if word.startswith(f"{name}=")), "")


def blocks(document: str) -> list[Block]:
    text = (ROOT / document).read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        found.append(Block(language, tuple(words), match["body"], text.count("\n", 0, match.start()) + 2))
    return found


def prose(document: str) -> str:
    return FENCE.sub("", (ROOT / document).read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------ blocks run


class Reader:
    """Does what a document says, in a folder of its own."""

    def __init__(self, document: str, folder: Path, cache: Path) -> None:
        self.document = document
        self.folder = folder
        self.bin = folder / "scratch" / "bin"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
        self.environment |= {f"KERNELWRIGHT_{name}": value for name, value in QUICK.items()}
        self.environment |= {
            "PATH": os.pathsep.join([str(self.bin), str(Path(sys.executable).parent), os.environ["PATH"]]),
            "KERNELWRIGHT_STORE": str(folder / "scratch" / "store.db"),
            "KERNELWRIGHT_CACHE_DIR": str(cache),
            "XDG_CACHE_HOME": str(folder / "scratch" / "xdg"),
        }
        (folder / "kernelwright.toml").write_text(METHOD, encoding="utf-8")

    def follow(self, block: Block) -> None:
        if name := block.word("file"):
            (self.folder / name).write_text(block.text, encoding="utf-8")
        elif block.language == "sh":
            self.run(block, ["sh", "-e", "-c", self.named(block.text)], block.exit_code)
        elif block.language == "python":
            script = self.folder / f"line_{block.line}.py"
            script.write_text(block.text, encoding="utf-8")
            self.run(block, ["python", script.name], block.exit_code)
        elif block.language == "console":
            self.converse(block)
        else:
            raise AssertionError(f"{self.document}:{block.line}: nobody knows how to run {block.language!r}")

    def converse(self, block: Block) -> None:
        steps = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE)
        assert steps, f"{self.document}:{block.line}: no command"
        for position, (command, expected) in enumerate(steps):
            last = position == len(steps) - 1
            done = self.run(block, ["sh", "-e", "-c", self.named(command)], block.exit_code if last else 0)
            assert any(matches(expected, output) for output in (done.stdout, done.stderr)), (
                f"{self.document}:{block.line}: $ {command}\n--- documented\n{expected}--- got\n"
                f"{done.stdout}--- and on standard error\n{done.stderr}"
            )

    def named(self, text: str) -> str:
        """The text with ``HASH`` replaced."""
        if not re.search(r"\bHASH\b", text):
            return text
        found = next(run["run"] for run in self.told("runs", "list")["runs"] if run["right"])
        return re.sub(r"\bHASH\b", self.told("runs", "show", found)["problems"][0]["candidate"][:12], text)

    def told(self, *words: str) -> Any:
        """What a command says in JSON."""
        command = ["kernelwright", *words, "--json"]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=self.folder, check=True
        )
        return json.loads(done.stdout)

    def run(self, block: Block, command: list[str], code: int) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment, cwd=self.folder, check=False, timeout=840
        )
        assert done.returncode == code, (
            f"{self.document}:{block.line}: exit code {done.returncode}, {code} documented\n{block.text}\n"
            f"--- standard output\n{done.stdout}--- standard error\n{done.stderr}"
        )
        return done


def matches(expected: str, output: str) -> bool:
    """Whether an output is as documented; ``...`` is anything, and the number of blanks doesn't matter."""

    def tidy(text: str) -> str:
        return "\n".join(" ".join(line.split()) for line in text.strip().splitlines())

    pattern = re.escape(tidy(expected)).replace(r"\ \.\.\.\ ", r"\ (?:.*\ )?").replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, tidy(output), re.DOTALL) is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    shutil.which("g++") is None or shutil.which("bwrap") is None, reason="needs a C++ compiler and bubblewrap"
)
@pytest.mark.parametrize("document", EXECUTED)
def test_the_blocks_of_a_document_do_what_it_says(document, tmp_path, make_cache):
    reader = Reader(document, tmp_path, make_cache())
    found = [block for block in blocks(document) if "no-run" not in block.words]
    assert len(found) >= 5
    with Commands(reader.bin, reader.environment):
        for block in found:
            reader.follow(block)


@pytest.mark.parametrize(
    ("expected", "output", "answer"),
    [
        ("a ... c\n", "a  b   c\n", True),
        ("a ... c\n", "a c\n", True),
        ("...\nhint: x...\n", "error: y\nhint: xyz\n", True),
        ("a\n", "a\nb\n", False),
        ("a.c\n", "abc\n", False),
    ],
)
def test_documented_output_is_compared(expected, output, answer):
    assert matches(expected, output) is answer


# ------------------------------------------------------------------------------------------------ what is named exists


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, by its path."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = dict(commands(cli))


def options_of(command: click.Command) -> set[str]:
    return {text for parameter in command.params for text in parameter.opts if text.startswith("-")} | {"--help", "-h"}


def calls(document: str) -> Iterator[list[str]]:
    """The words of every kernelwright command of a document, in blocks that run or not, and in its prose."""
    lines = [
        line for block in blocks(document) if block.language in {"sh", "console"} for line in block.text.splitlines()
    ]
    lines += SPAN.findall(prose(document))
    for line in lines:
        if re.search(r"\bkernelwright [a-z]", line):
            yield from split(line.removeprefix("$ "))


def split(line: str) -> Iterator[list[str]]:
    """The commands of a pipeline, without settings of variables and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.commenters = "#"
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("|&;<>()"):
            if words and words[0] == "kernelwright":
                yield words
            words = []
        elif words or not re.fullmatch(r"[A-Z_]+=\S*", word):
            words.append(word)


def test_every_command_and_option_that_is_named_exists():
    seen = 0
    for document in DOCUMENTS:
        for words in calls(document):
            rest = words[1:]
            path = next((tuple(rest[:n]) for n in (2, 1) if tuple(rest[:n]) in COMMANDS), None)
            groups = {path[:1] for path in COMMANDS if len(path) > 1}
            if path is None and (not rest or tuple(rest) in groups or rest[0].startswith("-")):
                continue
            assert path is not None, f"{document}: no command {' '.join(words)!r}"
            unknown = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} - options_of(
                COMMANDS[path]
            )
            assert not unknown, f"{document}: {' '.join(words)!r} has no option {unknown}"
            seen += 1
    assert seen >= 40


def test_every_option_in_the_prose_exists():
    known = set().union(*map(options_of, COMMANDS.values())) | {"--version"}
    for document in ("README.md", "docs/guide.md", "docs/measurement.md"):
        for span in SPAN.findall(prose(document)):
            found = re.match(r"--[a-z][a-z-]+", span)
            assert found is None or found[0] in known, f"{document}: no option {span!r}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_is_named_exists(document):
    text = (ROOT / document).read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    code = [*SPAN.findall(prose(document)), *(line for block in blocks(document) for line in block.text.splitlines())]
    named = {target for line in code for target in re.findall(r"(?:^|\s)make ([a-z][a-z-]*)", line)}
    assert named <= targets, f"{document}: {named - targets}"
    assert "README" not in document or {"demo", "test"} <= named, text


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_leads_somewhere(document):
    for link in LINK.findall(prose(document)):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = ROOT / document if not name else (ROOT / document).parent / name
        assert target.exists(), f"{document}: {link}"
        assert not anchor or anchor in anchors(target), f"{document}: {link}"


@pytest.mark.parametrize("document", ["CONTRIBUTING.md", "docs/measurement.md"])
def test_every_source_file_that_is_named_exists(document):
    known = {path.name for path in (ROOT / "kernelwright").rglob("*.*")}
    named = [span for span in SPAN.findall(prose(document)) if re.fullmatch(r"[a-z_/]+\.(py|c|md)", span)]
    assert named
    for name in named:
        places = (ROOT / name, ROOT / "kernelwright" / name)
        assert any(place.exists() for place in places) or name in known, f"{document}: {name}"


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


# ------------------------------------------------------------------------------------------------ nothing is left out


def in_code(text: str) -> str:
    """All inline code and all blocks of a document."""
    return "\n".join([*SPAN.findall(FENCE.sub("", text)), *(match["body"] for match in FENCE.finditer(text))])


@pytest.mark.parametrize("path", sorted(COMMANDS), ids=" ".join)
def test_the_guide_has_every_command_with_its_options(path):
    code = in_code(GUIDE)
    words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", code))
    name = " ".join(path)
    assert f"kernelwright {name}" in code or re.search(rf"^{name}\b", code, re.MULTILINE), "not in the guide"
    options = [parameter.opts for parameter in COMMANDS[path].params if isinstance(parameter, click.Option)]
    missing = [forms for forms in options if not words.intersection(forms)]
    assert not missing, "not in the guide"


def test_the_guide_has_every_setting_status_stage_and_rule():
    words = set(re.findall(r"[\w-]+", in_code(GUIDE))) | set(re.findall(r"\w[\w.]*\w", in_code(GUIDE)))
    wanted = {
        "setting": set(NAMES),
        "status": {status.value for status in Status},
        "stage": {stage.value for stage in Stage},
        "rule that refuses": {rule.id for rule in RULES.values() if rule.effect == "refuses"},
        "field of PROBLEM": set(ProblemMeta.model_fields),
        "baseline": set(BASELINES),
    }
    for what, names in wanted.items():
        assert names <= words, f"not in the guide: {what} {sorted(names - words)}"


def test_the_guide_has_the_defaults_that_the_settings_have():
    defaults = {name: NAMES[name].default for name in NAMES if name not in ("store", "cache_dir", "measurement")}
    defaults |= {name: field.default for name, field in Measurement.model_fields.items()}
    for name, default in defaults.items():
        row = re.search(rf"^\| [^|]*`{name}`[^|]*\| ([^|]*) \|", GUIDE, re.MULTILINE)
        assert row is not None, name
        text = "none" if default in (None, (), {}) else default
        if isinstance(text, tuple):
            text = ",".join(map(str, text))
        if isinstance(text, int) and text >= 1 << 20:
            text = f"{text >> 30} GiB" if text >= 1 << 30 else f"{text >> 20} MiB"
        shown = {part.strip().strip("`") for part in (row[1], *row[1].split(", "))}
        assert {str(text), f"{text:g}" if isinstance(text, float) else str(text)} & shown, (name, text, row[1])
