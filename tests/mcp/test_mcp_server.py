"""The server as an agent meets it, with the real referee; nothing here is timed."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from kernelwright.records import Status, Verdict

pytestmark = pytest.mark.untimed
TOOLS = {"best", "evaluate", "get_problem", "history", "list_problems", "profile", "submit"}


def test_every_tool_says_what_it_does_and_what_it_takes(agent):
    tools = {tool.name: tool for tool in agent.ask("list_tools").tools}
    assert set(tools) == TOOLS
    for tool in tools.values():
        assert len(tool.description.split()) > 20, tool.name
        assert all(field["description"] for field in tool.input_schema["properties"].values()), tool.name
    evaluate = tools["evaluate"].input_schema
    assert evaluate["required"] == ["problem", "source"]
    assert evaluate["properties"]["backend"]["enum"] == ["cpp", "triton", "cuda"]
    for name in ("best", "history"):
        assert "data" in tools[name].description
        assert "instruction" in tools[name].description
    assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == {"submit"}


def test_problems_are_listed_with_what_this_machine_does(agent):
    data = agent.call("list_problems", level=1)
    softmax = next(row for row in data["problems"] if row["id"] == "kernelwright/level1/softmax")
    assert softmax["category"] == "softmax"
    assert softmax["variants"]["cpu"]
    assert data["backends"]["cpp"] == {"device_class": "cpu", "timed": True}
    assert data["backends"]["cuda"] == {"device_class": "interpreter", "timed": False}


def test_a_problem_comes_with_its_reference_and_the_rules(agent, folder):
    data = agent.call("get_problem", problem="rectifier.py")
    assert data["reference"] == (folder / "rectifier.py").read_text()
    assert data["backends"]["cpp"]["variants"] == [{"ROWS": 16, "COLUMNS": 96}, {"ROWS": 3, "COLUMNS": 7}]
    assert data["baselines"] == ["eager"]
    assert "ModelNew" in data["rules"]["candidate"]
    assert set(data["rules"]["building"]) == {"cpp", "triton", "cuda"}
    assert data["rules"]["correctness"]["tolerance"] == {"scale": 1.0, "reduced_precision": []}


def test_a_right_kernel_gets_the_verdict_of_the_command_line_and_its_stages_are_told(agent, right):
    stages = queue.SimpleQueue()

    async def note(progress, total, message):
        stages.put((progress, message))

    result = agent.start("evaluate", problem="rectifier.py", source=right, time=False, on_progress=note).result()
    verdict = Verdict.model_validate(result.structured_content)
    assert verdict.passed
    assert verdict.stage == "checked"
    assert verdict.timing is None
    told = [stages.get_nowait() for _ in range(stages.qsize())]
    assert [number for number, _ in told] == list(range(1, len(told) + 1))
    assert [stage for _, stage in told][-3:] == ["build", "check", "ghost"]
    assert json.loads(result.content[0].text) == result.structured_content
    assert agent.call("history", problem="rectifier.py")["evaluations"] == []  # evaluate keeps nothing


def test_a_wrong_kernel_is_a_verdict_and_no_error(agent, right):
    wrong = right.replace("? x[i] : 0", "? x[i] : 1")
    verdict = Verdict.model_validate(agent.call("evaluate", problem="rectifier.py", source=wrong, time=False))
    assert verdict.status is Status.INCORRECT_NUMERICAL
    assert verdict.reason


def test_knobs_are_set_and_are_part_of_a_candidates_name(agent, right):
    source = right.replace("lib = cpp(", 'KNOBS = {"ZERO": [0, 1]}\nZERO = 0\nlib = cpp(', 1)
    source = source.replace('\n""")', '\n""", defines={"ZERO": ZERO})').replace(": 0;", ": ZERO;")
    plain, wrong = (
        agent.call("evaluate", problem="rectifier.py", source=source, time=False, **more)
        for more in ({}, {"knobs": {"ZERO": 1}})
    )
    assert (plain["status"], wrong["status"]) == ("PASSED", "INCORRECT_NUMERICAL")
    assert plain["candidate"] != wrong["candidate"]


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get_problem", {"problem": "level1/softmx"}, ["no problem named", "hint:", "softmax"]),
        ("evaluate", {"problem": "nothing.py", "source": "x"}, ["nothing.py"]),
        ("evaluate", {"problem": "rectifier.py", "source": " "}, ["empty", "class ModelNew"]),
        ("evaluate", {"problem": "rectifier.py", "source": "é" * (1 << 19) + "x"}, ["1048577 bytes", "1048576"]),
        ("evaluate", {"problem": "rectifier.py", "source": "x", "backend": "fortran"}, ["backend", "cuda"]),
        ("submit", {"problem": "rectifier.py", "source": "x", "note": "n" * 4097}, ["note", "4096"]),
        ("submit", {"problem": "rectifier.py", "source": "x", "parent": "abcdef"}, ["no kernel 'abcdef'"]),
        ("profile", {"problem": "rectifier.py"}, ["either candidate, a hash, or source"]),
        ("profile", {"problem": "rectifier.py", "candidate": "abcdef"}, ["no kernel 'abcdef'"]),
        ("history", {"problem": "rectifier.py", "limit": 0}, ["limit"]),
        ("list_problems", {"suite": "nothing"}, ["no suite named nothing"]),
    ],
)
def test_a_users_mistake_is_an_error_of_the_tool_and_the_server_goes_on(agent, tool, arguments, said):
    message = agent.error(tool, **arguments)
    assert all(part in message for part in said), message
    assert agent.call("get_problem", problem="rectifier.py")["id"] == "file/rectifier"


def test_a_reference_that_fails_is_a_verdict_of_its_own(agent, folder, right):
    text = (folder / "rectifier.py").read_text().replace("torch.relu(x)", "torch.relu(x, x, x)")
    (folder / "broken.py").write_text(text)
    verdict = agent.call("evaluate", problem="broken.py", source=right, time=False)
    assert verdict["status"] == "INVALID_REFERENCE"
    assert verdict["reason"]
    assert agent.call("evaluate", problem="rectifier.py", source=right, time=False)["status"] == "PASSED"


def test_judgements_wait_for_each_other_and_nothing_else_waits_for_them(agent, right):
    wrong = right.replace("? x[i] : 0", "? x[i] : 2")
    with agent.judging_held_up():
        calls = [agent.start("evaluate", problem="rectifier.py", source=s, time=False) for s in (wrong, right)]
        assert agent.call("list_problems", level=1)["problems"]
        assert agent.call("best") == {"baseline": "eager", "kernels": []}
        assert not any(call.done() for call in calls)
    first, second = (call.result().structured_content for call in calls)
    assert (first["status"], second["status"]) == ("INCORRECT_NUMERICAL", "PASSED")


def test_cancelled_calls_leave_nothing_behind(agent, right):
    begun = queue.SimpleQueue()

    async def note(progress, total, message):
        begun.put(message)

    marked = [f"{right}\n# cancelled {number}\n" for number in range(2)]
    with agent.judging_held_up():
        running = agent.start("submit", problem="level1/softmax", source=marked[0], on_progress=note)
        begun.get(timeout=120)
        waiting = agent.start("submit", problem="rectifier.py", source=marked[1])
        assert agent.call("history", problem="rectifier.py")["evaluations"] == []
        for call in (running, waiting):
            call.cancel()
        assert agent.call("list_problems", level=1)["problems"]
    assert agent.call("evaluate", problem="rectifier.py", source=right, time=False)["status"] == "PASSED"
    for problem in ("rectifier.py", "level1/softmax"):
        assert agent.call("history", problem=problem)["evaluations"] == []


def test_what_the_machine_lacks_is_an_error_of_the_tool_and_the_server_goes_on(connect, folder):
    with connect(folder, KERNELWRIGHT_SANDBOX="docker", DOCKER_HOST="unix:///nowhere/docker.sock") as agent:
        for _ in range(2):
            message = agent.error("evaluate", problem="rectifier.py", source="x = 1\n", time=False)
            assert message.startswith("Error executing tool evaluate: MissingToolError: no container engine")
            assert "hint:" in message
        assert agent.call("list_problems", level=1)["problems"]


# --------------------------------------------------------------------------------------------- how it ends


class Pipe:
    """The protocol by hand, line by line, to see all that goes over standard output and how the process ends."""

    def __init__(self, command: list[str], environment: dict[str, str], folder: Path) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment,
            text=True,
        )

    def send(self, method: str, number: int | None = None, **params: object) -> None:
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self.process.stdin.write(json.dumps(message if number is None else message | {"id": number}) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict:
        message = json.loads(self.process.stdout.readline())
        assert message["jsonrpc"] == "2.0"
        return message

    def begin(self) -> None:
        client = {"name": "by hand", "version": "1"}
        self.send("initialize", 1, protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        assert self.receive()["result"]["serverInfo"]["name"] == "kernelwright"
        self.send("notifications/initialized")


def descendants(root: int) -> set[tuple[int, str]]:
    """Every process below one, with the time at which it started."""
    found: dict[int, list[tuple[int, str]]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            found.setdefault(int(fields[1]), []).append((int(folder.name), fields[19]))
    below, layer = set(), [root]
    while layer:
        layer = [child for parent in layer for child in found.get(parent, ())]
        below.update(layer)
        layer = [pid for pid, _ in layer]
    return below


def alive(process: tuple[int, str]) -> bool:
    try:
        fields = Path(f"/proc/{process[0]}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z" and fields[19] == process[1]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
@pytest.mark.parametrize(
    ("processes", "way"),
    [
        pytest.param(1, "closed", id="closed while the sandbox starts"),
        pytest.param(3, "closed", id="closed while a worker runs"),
        pytest.param(3, "signalled", id="signalled while a worker runs"),
    ],
)
def test_the_end_drops_what_is_judged_and_leaves_no_process(processes, way, folder, right, command):
    text = (folder / "rectifier.py").read_text()
    (folder / "endless.py").write_text(
        text.replace("def get_inputs():", "def get_inputs():\n    while True:\n        pass")
    )
    argv, environment = command
    pipe = Pipe(argv, environment(folder, KERNELWRIGHT_SANDBOX="bwrap"), folder)
    with pipe.process as process:
        pipe.begin()
        arguments = {"problem": "endless.py", "source": right, "time": False}
        pipe.send("tools/call", 2, name="evaluate", arguments=arguments, _meta={"progressToken": "t"})
        said = []
        while "reference" not in said:
            said.append(pipe.receive()["params"]["message"])
        workers = descendants(process.pid)
        while len(workers) < processes:
            workers = descendants(process.pid)
        if way == "closed":
            process.stdin.close()
        else:
            os.kill(process.pid, signal.SIGTERM)
        assert process.wait(timeout=60) == (0 if way == "closed" else 130)
        rest = [json.loads(line) for line in process.stdout]
    assert all(message["jsonrpc"] == "2.0" for message in rest)
    assert not any(map(alive, workers))


def test_a_client_that_is_gone_at_once_is_no_fault(folder, command):
    argv, environment = command
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=folder,
        env=environment(folder),
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
