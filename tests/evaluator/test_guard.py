"""Poisoned and guarded tensor memory: what a stray write leaves behind, and that honest programs notice nothing."""

from __future__ import annotations

import base64
import os
import platform
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.errors import MachineError, MissingToolError
from kernelwright.evaluator.worker import guarded_memory as _guard
from kernelwright.evaluator.worker.guarded_memory import GuardLibrary
from kernelwright.sandbox import open_sandbox, recv_message, send_message

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the guard knows x86-64 only")
BLOCK = 131_072  # bytes of the block that guard_guests.trespass writes around

# Stands for torch's library of that name: allocates by each function that the guard redirects.
ALLOCATOR = """
#include <malloc.h>
#include <stdlib.h>
void *by_posix_memalign(size_t a, size_t n) { void *p; return posix_memalign(&p, a, n) ? NULL : p; }
void *by_aligned_alloc(size_t a, size_t n) { return aligned_alloc(a, n); }
void *by_memalign(size_t a, size_t n) { return memalign(a, n); }
void release(void *p) { free(p); }
void *calls(void) { return (void *)posix_memalign; }
int churn(int count) {
  unsigned char *held[64] = {0};
  int poisoned = 1;
  for (int i = 0; i < count; i++) {
    unsigned char **slot = &held[i * 7 % 64];
    free(*slot);
    *slot = by_posix_memalign(64, 1 + i % 500);
    poisoned &= (*slot)[i % 500] == 0xAB;
    (*slot)[0] = 1;
  }
  for (int i = 0; i < 64; i++) free(held[i]);
  return poisoned;
}
"""
# Loads libc10.so of the current folder, and a guard; `run` below appends what is tried with them.
PRELUDE = """
import ctypes, os, sys
from kernelwright.evaluator.worker.guarded_memory import Guard
c10 = ctypes.CDLL(os.path.abspath("libc10.so"))
for function in (c10.by_posix_memalign, c10.by_aligned_alloc, c10.by_memalign, c10.calls):
    function.restype = ctypes.c_void_p
    function.argtypes = [ctypes.c_size_t, ctypes.c_size_t] if function is not c10.calls else []
c10.release.argtypes = [ctypes.c_void_p]
guard = Guard(os.open(sys.argv[1], os.O_RDONLY))
"""


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory):
    return tmp_path_factory.mktemp("guard-cache")


@pytest.fixture(scope="module")
def library(cache_dir):
    return GuardLibrary(cache_dir)


@pytest.fixture(scope="module", params=["bwrap", "process"])
def sandbox(request):
    """Each rung that confines, with a zygote that has imported torch."""
    if request.param == "bwrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    with open_sandbox(request.param, python_paths=[str(Path(__file__).parent)]) as opened:
        yield opened


@pytest.fixture
def guest(sandbox, library):
    """Calls a function of guard_guests in a worker of its own."""
    text = base64.b64encode(library.data).decode()
    return lambda name, **payload: sandbox.call(f"guard_guests:{name}", {"library": text, **payload})


@pytest.fixture
def build(tmp_path):
    """Compiles a text to a shared object in this test's folder."""

    def build(text, name, *flags):
        command = ["gcc", "-O1", "-shared", "-fPIC", *flags, "-x", "c", "-o", str(tmp_path / name), "-"]
        subprocess.run(command, input=text, text=True, check=True)
        return str(tmp_path / name)

    return build


@pytest.fixture
def run(tmp_path, library):
    """Runs a program in a process of its own, in this test's folder, and returns what it printed."""
    path = tmp_path / "guard.so"
    path.write_bytes(library.data)

    def run(program, guard=str(path)):
        command = [sys.executable, "-c", program, guard]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.splitlines()

    return run


def test_a_worker_takes_the_library_as_a_sealed_file(sandbox, library):
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            worker = sandbox.start_worker("guard_guests:serve", sock=theirs, warm=True)
        try:
            fd = library.memfd()
            send_message(ours, {}, fds=[fd])
            os.close(fd)
            seen = recv_message(ours, timeout_s=60.0)[0]
        finally:
            worker.kill()
    text = f"wrote 4 bytes past the end of a block of {BLOCK} bytes"
    assert seen == {"installed": True, "poisoned": True, "violations": [text]}


def test_new_memory_is_poisoned_up_to_the_limit(guest):
    assert guest("poison") == {
        "float32": True,
        "int8": [-1, -1, -1],
        "resized": [True, True],
        "another byte": "3c" * 5,
        "filled": [True, True, False, False],
        "violations": [f"wrote 1 bytes past the end of a block of {4 << 20} bytes"],
    }


@pytest.mark.parametrize("off", [False, True], ids=["on", "off"])
@pytest.mark.parametrize(
    ("writes", "texts"),
    [
        ([(BLOCK, 4)], ["wrote 4 bytes past the end of a block of 131072 bytes"]),
        ([(BLOCK, 1)], ["wrote 1 bytes past the end of a block of 131072 bytes"]),
        ([(BLOCK + 255, 1)], ["wrote 1 bytes past the end of a block of 131072 bytes, 255 bytes away from it"]),
        ([(BLOCK, 2), (BLOCK + 62, 2)], ["wrote 64 bytes past the end of a block of 131072 bytes"]),
        ([(-4, 4)], ["wrote 4 bytes before the start of a block of 131072 bytes"]),
        ([(-256, 8)], ["wrote 8 bytes before the start of a block of 131072 bytes, 248 bytes away from it"]),
        (
            [(-1, 1), (BLOCK, 1)],
            [
                "wrote 1 bytes past the end of a block of 131072 bytes",
                "wrote 1 bytes before the start of a block of 131072 bytes",
            ],
        ),
        ([(0, 4), (BLOCK - 4, 4)], []),
    ],
)
def test_a_write_outside_is_told_once_while_the_block_lives_and_when_it_is_freed(guest, writes, texts, off):
    assert guest("trespass", writes=writes, off=off) == {"live": texts, "again": texts, "freed": texts}


def test_at_most_eight_violations_are_told(guest):
    texts = [f"wrote {n} bytes past the end of a block of {4 * n} bytes" for n in range(1, 9)]
    assert guest("trespass_often") == {"violations": texts}


def test_a_red_zone_copied_from_another_block_is_no_red_zone(guest):
    (text,) = guest("carry")["violations"]
    assert " past the end of a block of 4000 bytes" in text  # bytes that happen to be the right ones are not counted


@pytest.mark.parametrize("threads", [1, 4])
def test_honest_operators_give_the_same_results_and_no_violation(guest, threads):
    assert guest("honest", threads=threads) == {"different": [], "live": [], "freed": [], "aligned": True}


def test_many_blocks_live_at_once_and_go_in_no_order(guest):
    text = "wrote 1 bytes past the end of a block of 4 bytes"
    assert guest("many") == {"live": [text], "freed": [text]}


def test_threads_of_torch_allocate_and_free_each_others_blocks(guest):
    assert guest("threads") == {"sums": [True] * 4, "violations": []}


def test_blocks_of_guarded_and_unguarded_times_are_freed_in_each_others(guest):
    assert guest("switch") == {"before, off, on": [False, False, True], "kept": True, "violations": []}


def test_ten_thousand_tensors_leave_nothing_behind(guest):
    seen = guest("cycle")  # 10,000 tensors of 100,000 bytes: one in a hundred lost would be 10 MB
    assert seen["violations"] == []
    assert seen["grown_bytes"] < 5 << 20


@pytest.mark.parametrize("binding", ["lazy", "now"])  # "now": the loader makes the whole offset table read-only
@pytest.mark.parametrize("allocate", ["posix_memalign", "aligned_alloc", "memalign"])
def test_every_allocation_function_and_either_binding_is_redirected(build, run, binding, allocate):
    build(ALLOCATOR, "libc10.so", f"-Wl,-z,relro,-z,{binding}")
    program = PRELUDE + f"allocate = c10.by_{allocate}\n"
    program += """
plain, unhooked = allocate(64, 100), c10.calls()
print(guard.install(), c10.calls() == unhooked)
guard.on(0xAB)
blocks = [allocate(alignment, 100) for alignment in (8, 64, 4096)]
print(c10.calls() == unhooked, [block % 4096 for block in blocks[2:]], blocks[1] % 64)
print({ctypes.string_at(block, 100) for block in blocks} == {bytes([0xAB]) * 100}, guard.violations())
ctypes.memset(blocks[2] - 1, 0, 1)
for block in (plain, *blocks, None):
    c10.release(block)
print(guard.violations())
"""
    assert run(program) == [
        "True True",
        "False [0] 0",
        "True []",
        "['wrote 1 bytes before the start of a block of 100 bytes']",
    ]


def test_threads_that_hold_no_interpreter_lock_allocate_at_once(build, run):
    build(ALLOCATOR, "libc10.so")
    program = (
        PRELUDE
        + """
import concurrent.futures
guard.install(), guard.on(0xAB)
with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print(list(pool.map(c10.churn, [50_000] * 4)), guard.violations())
"""
    )
    assert run(program) == ["[1, 1, 1, 1] []"]


def test_odd_requests_are_answered_as_without_the_guard(build, run):
    build(ALLOCATOR, "libc10.so")
    program = (
        PRELUDE
        + """
def ask():
    yield from (c10.by_posix_memalign(*request) for request in [(64, 1 << 62), (64, 2**64 - 1), (24, 8), (4, 8)])
    odd = [c10.by_posix_memalign(64, 0), c10.by_memalign(24, 8)]  # memory all the same
    yield from (block is not None for block in odd)
    for block in odd:
        c10.release(block)

plain = list(ask())
guard.install(), guard.on(0)
print(plain, list(ask()) == plain, guard.violations())
"""
    )
    assert run(program) == ["[None, None, None, None, True, True] True []"]


REFUSALS = {
    "import os, sys": "libc10.so is not loaded",
    "import ctypes, os, sys; ctypes.CDLL(os.path.abspath('libc10.so'))": (
        "libc10.so does not import posix_memalign and free"
    ),
}
ATTEMPT = """
from kernelwright.evaluator.worker.guarded_memory import Guard
guard = Guard(os.open(sys.argv[1], os.O_RDONLY))
print(guard.install(), guard.reason)
guard.off()
print(guard.violations())
try:
    guard.on(0xFF)
except RuntimeError as error:
    print(error)
"""


@pytest.mark.parametrize("before", REFUSALS)
def test_where_there_is_nothing_to_redirect_it_says_so(build, run, before):
    build("#include <stdlib.h>\nvoid *make(void) { return malloc(8); }\n", "libc10.so")
    reason = REFUSALS[before]
    assert run(f"{before}\n{ATTEMPT}") == [f"False {reason}", "[]", f"the memory guard is not installed: {reason}"]


def test_on_another_platform_it_is_built_and_says_so(build, run):
    source = (Path(_guard.__file__).parent / "guarded_memory.c").read_text()
    elsewhere = build(source, "elsewhere.so", "-U__linux__")
    reason = "only x86-64 Linux with glibc is supported"
    assert run(f"import os, sys\n{ATTEMPT}", elsewhere)[0] == f"False {reason}"


def test_what_is_no_library_is_not_installed(run, tmp_path):
    (tmp_path / "text").write_text("no library")
    assert run(f"import os, sys\n{ATTEMPT}", str(tmp_path / "text"))[0].startswith("False the library cannot be loaded")


def test_a_guard_must_be_installed_before_it_is_switched_on():
    with pytest.raises(RuntimeError, match=r"call install\(\) first"):
        _guard.Guard(0).on(0xFF)


def test_the_library_is_built_once_and_sealed(library, cache_dir, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert GuardLibrary(cache_dir).data == library.data
    with pytest.raises(MissingToolError, match="gcc is missing"):
        GuardLibrary(tmp_path)
    fd = library.memfd()
    with pytest.raises(PermissionError):
        os.write(fd, b"other")
    os.close(fd)


def test_a_compiler_that_fails_is_a_broken_machine(tmp_path, monkeypatch):
    compiler = tmp_path / "gcc"
    compiler.write_text("#!/bin/sh\necho no space left >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineError, match="no space left"):
        GuardLibrary(tmp_path / "cache")
