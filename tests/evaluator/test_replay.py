"""Clock R on a stand-in for the driver: recorded plans replayed by a C process, judged by the keeper."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from stand_in import host_module

from kernelwright import inline
from kernelwright.evaluator.device.keeper_client import Keeper, Placed
from kernelwright.evaluator.device.queue import Queue, QueueLibrary, fresh_keys
from kernelwright.evaluator.device.replay import (
    CannotReplay,
    NotAllRecorded,
    Replay,
    ReplayMemory,
    parse_plan,
    replayer_program,
)
from kernelwright.evaluator.wire import queue as wire
from kernelwright.evaluator.worker.launch_log import LoggedLaunch, Recording
from kernelwright.evaluator.worker.plan import recorded_plan

HERE = Path(__file__).parent.parent / "stand_in"
COUNT, SLOTS, SLOT_BYTES, STRIDE = 1000, 8, 4096, 4096
ARENA = 0x7A0000000000  # where the worker is said to have had its memory
ARENA_BYTES = 4 << 20
OUTPUT = ARENA + (1 << 20)


@pytest.fixture(scope="module")
def machine(rehearsed, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    return rehearsed, QueueLibrary(folder), replayer_program(folder)


def launch(x=ARENA, y=OUTPUT, count=COUNT, **more):
    parameters = struct.pack("<QQI", x, y, count).hex()
    step = {"kind": "launch", "image": 0, "name": "affine", "grid": [2, 1, 1], "block": [1, 1, 1], "shared": 0}
    return {**step, "parameters": parameters, "fields": [[0, 8], [8, 8], [16, 4]], **more}


def claim(*steps, at=OUTPUT):
    return {"steps": list(steps), "place": ARENA, "outputs": [{"at": at, "size": 4 * COUNT}]}


class Confirmation:
    """One replay with its queue and memory."""

    def __init__(self, machine, plan, arena_size=ARENA_BYTES, images=()):
        (library, ours, affine), queue_library, program = machine
        images = list(images) or [affine]
        with contextlib.ExitStack() as ending:
            self.keeper = Keeper(library, images=ours)
            ending.callback(self.keeper.close)
            self.queue = Queue(queue_library, "replay")
            ending.callback(self.queue.close)
            shared = [self.keeper.share(size) for size in (arena_size, SLOT_BYTES * SLOTS, STRIDE * SLOTS)]
            for _, fd in shared:
                ending.callback(os.close, fd)
            (self.arena, arena_fd), (self.sealed, sealed_fd), (self.opened, opened_fd) = shared
            self.replay = Replay(
                program,
                library,
                parse_plan(plan, images, range(ARENA, ARENA + arena_size), lambda image: ["affine", "missing"]),
                door=ours[0],
                images=images,
                pages=self.queue.fds(),
                arena=ReplayMemory(arena_fd, self.arena.size, ARENA),
                sealed=ReplayMemory(sealed_fd, self.sealed.size),
                opened=ReplayMemory(opened_fd, self.opened.size),
                slot_bytes=SLOT_BYTES,
                rooms=wire.Rooms([0], [STRIDE], STRIDE),
            )
            ending.callback(self.replay.end)
            self._ending = ending.pop_all()
        self.plain = self.keeper.allocate(SLOT_BYTES * SLOTS)
        self.values = np.random.default_rng().standard_normal((SLOTS, SLOT_BYTES // 4)).astype(np.float32)
        self.keeper.put(self.plain, self.values)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._ending.close()

    def window(self, timeout_s=10.0):
        """One window over all slots, every call opened: how many numbers of each output are wrong."""
        keys, slots = fresh_keys(SLOTS), np.random.default_rng().permutation(SLOTS)
        rows = zip(slots, keys, strict=True)
        sealings = [(self.plain, int(s) * SLOT_BYTES, self.sealed, int(s) * SLOT_BYTES, int(k)) for s, k in rows]
        self.keeper.seal(sealings, SLOT_BYTES)
        self.replay.enqueue(self.queue.first_call(), SLOTS)
        opened = {call: call for call in range(SLOTS)}
        window = self.queue.window(slots, keys, opened, check_alive=self.replay.check_alive, call_timeout_s=timeout_s)
        self.replay.finish()
        wrong = []
        for call, place in window.places.items():
            where = (self.opened, place * STRIDE, 4 * COUNT)
            assert self.keeper.digest([where], int(window.keys[call])) == int(window.sums[call])
            want = 2.0 * self.values[slots[call], :COUNT] + 1.0
            memory = self.keeper.allocate(want.nbytes)
            self.keeper.put(memory, want)
            given = [Placed(m, at, "float32", (COUNT,), (1,)) for m, at in ((self.opened, place * STRIDE), (memory, 0))]
            wrong.append(self.keeper.difference(*given).different)
        return window, wrong


def test_a_plan_is_replayed_and_its_outputs_are_right(machine):
    with Confirmation(machine, claim(launch())) as one:
        for _ in range(2):
            window, wrong = one.window()
            assert wrong == [0] * SLOTS
            assert window.together
            assert np.all(window.durations_ns > 0)


def test_the_driver_may_name_its_threads_in_a_confined_replay(machine, monkeypatch):
    monkeypatch.setenv("KW_STANDIN_NASTY", "names")
    with Confirmation(machine, claim(launch())) as one:
        assert one.window()[1] == [0] * SLOTS


@pytest.mark.parametrize(
    "how", [{"cluster": [2, 1, 1]}, {"cooperative": True}, {"cluster": [1, 1, 1], "cooperative": True}]
)
def test_clusters_and_cooperative_launches_are_replayed(machine, how):
    with Confirmation(machine, claim(launch(**how))) as one:
        assert one.window()[1] == [0] * SLOTS


@pytest.mark.parametrize(
    ("how", "code"), [({"cluster": [3, 1, 1]}, 1), ({"cooperative": True, "grid": [65, 1, 1]}, 720)]
)
def test_what_a_device_cannot_launch_so_is_not_launched_in_another_way(machine, how, code):
    with pytest.raises(CannotReplay, match=f"cuLaunchKernelEx: CUDA error {code}"):
        Confirmation(machine, claim(launch(**how)))


def test_copies_and_fills_are_replayed(machine):
    middle = ARENA + (2 << 20)
    steps = [
        {"kind": "fill", "at": OUTPUT, "size": 4 * COUNT, "value": 255},
        launch(y=middle),
        {"kind": "copy", "at": OUTPUT, "source": middle, "size": 4 * COUNT},
    ]
    with Confirmation(machine, claim(*steps)) as one:
        assert one.window()[1] == [0] * SLOTS


@pytest.mark.parametrize("steps", [[launch(count=COUNT // 2)], [launch(x=OUTPUT)]])
def test_a_false_plan_only_times_itself(machine, steps):
    with Confirmation(machine, claim(*steps)) as one:
        assert min(one.window()[1]) >= COUNT // 2 - 1


def test_a_replay_whose_referee_has_gone_ends_in_the_middle_of_a_window(machine):
    with Confirmation(machine, claim(launch())) as one:
        one.replay.enqueue(one.queue.first_call(), SLOTS)
        one.replay._control.close()
        assert one.replay._process.wait(10.0) == 0


def test_host_code_in_a_candidates_image_has_no_files_sockets_or_processes(machine, tmp_path, monkeypatch):
    """The driver parses what a candidate built. If that takes it over, the process must not be worth having."""
    secret = tmp_path / "secret"
    secret.write_text("key")
    monkeypatch.setenv("KW_TEST_SECRET", str(secret))
    image = host_module(HERE / "escaping.cu", tmp_path, ["-pthread"])
    with Confirmation(machine, claim(launch()), images=[image]) as one:
        assert one.window()[1] == [0] * SLOTS
    outside = subprocess.run(
        [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", _file(tmp_path, image)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert outside.stderr == "escaped: 127 here, 127 in a thread\n", "the image finds what there is"


def _file(folder, image):
    path = folder / "escaping.so"
    path.write_bytes(image)
    return str(path)


def test_a_plan_that_faults_is_told(machine):
    with pytest.raises(CannotReplay, match="CUDA error 700"):
        Confirmation(machine, claim(launch(y=64)))


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (claim(launch(image=1)), "not built here"),
        (claim(launch(grid=[0, 1, 1])), "empty grid"),
        (claim(launch(block=[2048, 1, 1])), "no block"),
        (claim(launch(), at=ARENA + ARENA_BYTES - 8), "not its own"),
        (claim({"kind": "copy", "at": OUTPUT, "source": ARENA - 8, "size": 8}), "not its own"),
        (claim({"kind": "fill", "at": OUTPUT, "size": ARENA_BYTES, "value": 0}), "not its own"),
        (claim(launch(parameters="zz")), "malformed"),
        (claim(launch(name="a;b")), "malformed"),
        (claim(launch(cluster=[1, 1])), "malformed"),
        (claim(launch(fields=[[0, 8], [8, 8], [16, 8]])), "outside of its launch"),
        (claim(launch(fields=[[0, 8, 8]])), "malformed"),
        (claim(launch()) | {"others": ["aten.mm"]}, "torch computes in its calls: aten.mm"),
        (claim(), "no launch of its own"),
        ({"steps": []}, "malformed"),
        (None, "malformed"),
    ],
)
def test_a_plan_that_reaches_too_far_is_refused(plan, said):
    with pytest.raises(CannotReplay, match=said):
        parse_plan(plan, [b""], range(ARENA, ARENA + ARENA_BYTES), lambda image: ["affine", "missing"])


def test_a_plan_of_everything_says_what_it_lacks():
    plan, arena = claim(launch()) | {"others": ["cuGraphLaunch"]}, range(ARENA, ARENA + ARENA_BYTES)
    with pytest.raises(NotAllRecorded, match="can only be recorded in part: cuGraphLaunch"):
        parse_plan(plan, [b""], arena, everything=True)
    with pytest.raises(NotAllRecorded, match="no launch was recorded"):
        parse_plan(claim(), [b""], arena, everything=True)


@pytest.mark.parametrize("outputs", [[], 2 * [{"at": OUTPUT, "size": 4 * COUNT}]])
def test_a_plan_with_another_number_of_outputs_cannot_be_replayed(machine, outputs):
    with pytest.raises(CannotReplay, match=f"{len(outputs)} outputs, 1 expected"):
        Confirmation(machine, {**claim(launch()), "outputs": outputs})


def test_a_kernel_is_found_by_its_symbol():
    scalar_first, more = "_Z4rowsiPf", "_Z9more_rowsPf"  # a builtin type's letter follows the name
    image = f"\0.text._Z5scalePf\0.text.affine\0.text.{scalar_first}\0.text.{more}\0.text._Z5emptyv\0".encode()
    arena = range(ARENA, ARENA + ARENA_BYTES)
    names = {"affine": "affine", "scale": "_Z5scalePf", "rows": scalar_first, "more_rows": more, "empty": "_Z5emptyv"}
    for name, symbol in names.items():
        assert parse_plan(claim(launch(name=name)), [image], arena).steps[0].name == symbol
    with pytest.raises(CannotReplay, match="no kernel 'missing'"):
        parse_plan(claim(launch(name="missing")), [image], arena)


def test_what_a_call_launches_and_what_torch_does_besides_is_recorded():
    made = []
    kernel = inline.CudaKernel("affine", None, lambda *launched: made.append(launched), "/product")
    x = torch.zeros(8)

    def call(work):
        y = torch.empty_like(x).view(2, 4)
        kernel[2, 1](ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr()), ctypes.c_uint32(8))
        work(y)
        return y

    plan, images = recorded_plan(lambda: call(lambda y: None), 4096, ["/other", "/product"])
    assert images == []
    (step,) = plan["steps"]
    assert (step["image"], step["name"], step["grid"], step["block"]) == (1, "affine", [2, 1, 1], [1, 1, 1])
    assert struct.unpack("<QQI", bytes.fromhex(step["parameters"])) == (x.data_ptr(), plan["outputs"][0]["at"], 8)
    assert (plan["outputs"][0]["size"], plan["place"], plan["others"]) == (32, 4096, [])
    assert recorded_plan(lambda: call(lambda y: y.mul_(2.0).add_(1.0)), 0, [])[0]["others"] == [
        "aten.mul_",
        "aten.add_",
    ]
    cleared = recorded_plan(lambda: call(lambda y: y.zero_()), 0, [])[0]
    assert cleared["others"] == []
    assert cleared["steps"][1] == {"kind": "fill", "at": cleared["outputs"][0]["at"], "size": 32, "value": 0}
    copied = recorded_plan(lambda: call(lambda y: y.view(8).copy_(x)), 0, [])[0]["steps"][1]
    assert (copied["kind"], copied["source"], copied["size"]) == ("copy", x.data_ptr(), 32)
    assert recorded_plan(lambda: call(lambda y: y.t().copy_(x.view(4, 2))), 0, [])[0]["others"] == ["aten.copy_"]
    assert len(made) == 5


def test_launches_of_a_log_are_announced_or_claimed():
    """What a launcher has announced is recorded as it says: of one name there may be several kernels."""

    class Log:
        @contextlib.contextmanager
        def record(self, announced):
            made = Recording(announced)
            yield made
            launched = announced("_Z6affinePKfPfj", (2, 1, 1), (1, 1, 1))
            made.steps = [logged(b"a library"), launched, {"kind": "fill"}, logged(b"a library")]
            made.unknown = ["cuGraphLaunch", "cuGraphLaunch"]
            assert announced("_Z6affinePKfPfj", (2, 1, 1), (1, 1, 1)) is None
            assert announced("affine", (3, 1, 1), (1, 1, 1)) is None

    def logged(image):
        return LoggedLaunch(image, "rows", (3, 1, 1), (64, 2, 1), 16, b"\1\2", ((0, 2),), (1, 1, 1), True)

    def call():
        kernel[3, 2](ctypes.c_int64(1))  # of a kernel that is not told
        kernel[2, 1](ctypes.c_int64(7))
        return torch.zeros(2)

    kernel = inline.CudaKernel("affine", None, lambda *launched: None, "/product")
    plan, images = recorded_plan(call, 64, ["/other", "/product"], Log())
    assert images == [b"a library"]
    assert [step.get("image") for step in plan["steps"]] == [2, 1, None, 2]
    assert plan["steps"][1]["parameters"] == struct.pack("<q", 7).hex()
    assert plan["others"] == ["cuGraphLaunch"]
    assert plan["steps"][0] == {
        "kind": "launch",
        "image": 2,
        "name": "rows",
        "grid": [3, 1, 1],
        "block": [64, 2, 1],
        "shared": 16,
        "parameters": "0102",
        "fields": [[0, 2]],
        "cluster": [1, 1, 1],
        "cooperative": True,
    }


def test_a_plan_of_many_kernels_is_refused():
    many = [launch(name=f"k{number}") for number in range(257)]
    with pytest.raises(CannotReplay, match="too many kernels"):
        parse_plan(claim(*many), [b""], range(ARENA, ARENA + ARENA_BYTES))


def test_parameters_are_put_where_a_kernel_expects_them(machine):
    """A recording does not know ``alignas``; the driver does."""
    parameters = struct.pack("<Q56xQI", ARENA, OUTPUT, COUNT).hex()
    plan = claim(launch(parameters=parameters, fields=[[0, 8], [64, 8], [72, 4]]))
    with Confirmation(machine, plan) as one:
        assert one.window()[1] == [0] * SLOTS
    for fields in ([[0, 8], [64, 4], [72, 4]], [[0, 8], [64, 8]], [[0, 8], [64, 8], [72, 4], [72, 4]]):
        with pytest.raises(CannotReplay, match="a kernel's parameters"):
            Confirmation(machine, claim(launch(parameters=parameters, fields=fields)))


def test_only_what_is_launched_is_loaded(machine):
    """Among a candidate's products may be C++ for this machine, which no GPU's driver loads."""
    plan = claim(launch(image=1))
    with Confirmation(machine, plan, images=[b"no code", machine[0].affine]) as one:
        assert one.window()[1] == [0] * SLOTS


def test_a_kernel_with_much_shared_memory_is_set_up_as_triton_does(machine):
    with Confirmation(machine, claim(launch(prefers_shared=True))) as one:
        assert one.window()[1] == [0] * SLOTS


def test_a_kernel_that_is_not_in_its_product_cannot_be_replayed(machine):
    with pytest.raises(CannotReplay, match="cuModuleGetFunction"):
        Confirmation(machine, claim(launch(name="missing")))


def test_what_triton_launches_is_recorded():
    from triton.compiler.compiler import CompiledKernel

    made = []
    kernel = CompiledKernel.__new__(CompiledKernel)
    kernel.kernel, kernel.name, kernel._run = b"\x7fELF", "rows", lambda *given: made.append(given)
    kernel.metadata = SimpleNamespace(num_warps=4, shared=1024, num_ctas=1)
    signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr", "scale": "fp32", "half": "fp16"}
    kernel.src = SimpleNamespace(signature=signature)
    x = torch.zeros(8)

    def call():
        y = torch.empty_like(x)
        kernel.run(3, 1, 1, 0, 0, None, None, None, None, x, y, 8, 1024, 0.5, 1.0)
        return y

    plan, images = recorded_plan(call, 64, ["/product"])
    (step,) = plan["steps"]
    assert images == [b"\x7fELF"]
    assert (step["image"], step["name"], step["grid"]) == (1, "rows", [3, 1, 1])
    assert (step["block"], step["shared"]) == ([128, 1, 1], 1024)
    values = struct.unpack("<QQifexx4xQQ", bytes.fromhex(step["parameters"]))
    assert step["fields"] == [[0, 8], [8, 8], [16, 4], [20, 4], [24, 2], [32, 8], [40, 8]]
    assert not step["prefers_shared"]
    assert values == (x.data_ptr(), plan["outputs"][0]["at"], 8, 0.5, 1.0, 0, 0)
    assert len(made) == 1
    kernel.metadata.launch_pdl, kernel.metadata.shared = True, 64 << 10
    (step,) = recorded_plan(call, 64, [])[0]["steps"]  # without that attribute it waits for more
    assert step["prefers_shared"]
    kernel.metadata.launch_cooperative_grid = True
    assert recorded_plan(call, 64, [])[0]["others"] == ["triton: launch_cooperative_grid"]
    kernel.metadata.launch_cooperative_grid, signature["n"] = False, "tensordesc<fp32>"
    assert recorded_plan(call, 64, [])[0]["others"] == ["triton: tensordesc<fp32>"]
    kernel.run(1, 1, 1, 0, 0, None, None, None, None)
    plan, _ = recorded_plan(lambda: kernel.run(0, 1, 1, 0, 0, None, None, None, None) or x, 64, [])
    assert (plan["steps"], plan["others"]) == ([], [])  # Triton launches nothing for an empty grid
    assert len(made) == 6
