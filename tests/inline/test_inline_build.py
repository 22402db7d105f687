"""Building: what the compiler may be told, the cache, and the provider that stands in for the compiler."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from kernelwright.inline import (
    BuildError,
    BuildRequest,
    check_flags,
    compile_command,
    compiler_version,
    cpp,
    cuda,
    set_product_provider,
)

SOURCE = 'extern "C" int answer(int x) { return x + 41; }'


TUNING = "-O2 -Ofast -ffast-math -fno-math-errno -ffp-contract=fast -mprefer-vector-width=512 -mavx2 -march=x86-64-v3"
MORE_TUNING = "-DX -DX=a+b -std=c++20 -lm -lmvec -lgomp -Wall -Wno-unused -funroll-loops -mtune=native"
LOADING = "-fplugin=/x.so -fplugin-arg-a-b=1 -I/etc -include /etc/passwd -B/x -specs=/x -wrapper @args -isystem/x"
LINKING = "-Wl,-rpath=/x -Wp,-D -Wa,-a -Xlinker -L/x -lcrypto -fuse-ld=gold -fsanitize=address -T"
WRITING = "-o x.so -E -S -c -fdump-tree-all -fprofile-use=/x -save-temps -fopt-info-vec=/x -dumpdir -MF"
MALFORMED = "-D -m -x -O9 -imacros -no-integrated-cpp -march=/x --param=x"


@pytest.mark.parametrize("flag", [*f"{TUNING} {MORE_TUNING}".split(), "-DX=a b"])
def test_options_that_tune_are_allowed(flag):
    check_flags([flag])


@pytest.mark.parametrize("flag", [*f"{LOADING} {LINKING} {WRITING} {MALFORMED}".split(), "", "-DX\n"])
def test_options_that_reach_further_are_refused(flag):
    with pytest.raises(BuildError, match="not allowed"):
        compile_command(BuildRequest("cpp", SOURCE, (flag,)), "/out.so", "/in.cpp")
    with pytest.raises(BuildError, match="not allowed"):
        cpp(SOURCE, flags=[flag])


def test_the_command_builds_the_request(tmp_path):
    request = BuildRequest("cpp", SOURCE, ("-O2", "-lm", "-DX=1"))
    source, out = tmp_path / "k.cpp", tmp_path / "k.so"
    source.write_text(SOURCE)
    command = compile_command(request, str(out), str(source))
    assert command[0] == "g++"
    assert command.index("-lm") > command.index(str(source)) > command.index("-DX=1")
    subprocess.run(command, check=True)
    assert out.read_bytes()[:4] == b"\x7fELF"
    assert "g++" in compiler_version() or "GCC" in compiler_version()


def test_the_key_names_exactly_the_content():
    base = BuildRequest("cpp", SOURCE, ("-O2",))
    assert base.key == BuildRequest("cpp", SOURCE, ("-O2",)).key
    others = [
        BuildRequest("cpp", SOURCE),
        BuildRequest("cpp", SOURCE + " ", ("-O2",)),
        BuildRequest("cuda", SOURCE, ("-O2",)),
    ]
    assert len({base.key, *(r.key for r in others)}) == 4


def test_a_second_build_comes_from_the_cache(private_cache, monkeypatch):
    assert cpp(SOURCE).answer(1) == 42
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("the compiler ran again"))
    assert cpp(SOURCE).answer(2) == 43
    assert len(list(private_cache.glob("kernelwright/inline/*/kernel.so"))) == 1


def test_racing_builds_leave_one_whole_library(private_cache):
    program = f"from kernelwright.inline import cpp; print(cpp({SOURCE!r}).answer(1))"
    command, root = [sys.executable, "-c", program], Path(__file__).parents[2]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) for _ in range(3)]
    assert [racer.communicate()[0].strip() for racer in racers] == [b"42"] * 3
    (folder,) = (private_cache / "kernelwright/inline").iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["kernel.cpp", "kernel.so"]


def test_a_compiler_error_carries_the_log_cut_to_4_kb(private_cache):
    with pytest.raises(BuildError) as error:
        cpp('extern "C" void f() { undeclared(); }\n' + "nonsense;\n" * 500)
    assert "undeclared" in error.value.log
    assert len(error.value.log) <= 4096
    assert str(private_cache) not in error.value.log
    again = pickle.loads(pickle.dumps(error.value))
    assert (again.message, again.log) == (error.value.message, error.value.log)
    assert not list(private_cache.glob("kernelwright/inline/*/.build-*"))


def test_no_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BuildError, match=r"apt install g\+\+"):
        cpp(SOURCE)


def test_an_unwritable_cache_is_named(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    with pytest.raises(BuildError, match="XDG_CACHE_HOME"):
        cpp(SOURCE)


def test_a_bad_define_is_refused():
    with pytest.raises(BuildError, match="identifier"):
        cpp(SOURCE, defines={"a b": 1})


def test_the_provider_is_asked_instead_of_the_compiler(tmp_path, monkeypatch):
    source, out = tmp_path / "k.cpp", tmp_path / "k.so"
    source.write_text(SOURCE)
    subprocess.run(compile_command(BuildRequest("cpp", SOURCE), str(out), str(source)), check=True)
    asked = []
    set_product_provider(lambda request: asked.append(request) or str(out))
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("a compiler ran"))
    assert cpp(SOURCE, defines={"N": 3}, flags=("-O2",)).answer(1) == 42
    assert asked == [BuildRequest("cpp", SOURCE, ("-O2", "-DN=3"))]


def test_cuda_asks_its_provider_and_says_what_is_missing_without_one(tmp_path):
    asked = []

    def provide(request):
        asked.append(request)
        raise BuildError("not today")

    set_product_provider(provide)
    with pytest.raises(BuildError, match="not today"):
        cuda("__global__ void k() {}", "k", defines={"N": 2}, flags=["-use_fast_math"])
    assert asked == [BuildRequest("cuda", "__global__ void k() {}", ("-use_fast_math", "-DN=2"), "k")]
    set_product_provider(None)
    with pytest.raises(BuildError, match=r"no CUDA (device|compiler)"):
        cuda('extern "C" __global__ void k() {}', "k")


@pytest.mark.parametrize(
    "flag", ["-I/etc", "-Xcompiler=-fplugin=x", "--run", "-o/tmp/x", "-ccbin=/tmp/x", "-Xptxas=-x"]
)
def test_options_of_the_cuda_compiler_that_do_more_than_tune_are_refused(flag):
    set_product_provider(lambda request: pytest.fail("asked to build"))
    with pytest.raises(BuildError, match="not allowed"):
        cuda("__global__ void k() {}", "k", flags=[flag])


def test_an_emulated_product_outside_of_the_referee_says_where_it_runs(tmp_path):
    (tmp_path / "product.so").write_bytes(b"kw_product_anchor")
    set_product_provider(lambda request: str(tmp_path / "product.so"))
    with pytest.raises(BuildError, match="emulator only"):
        cuda("__global__ void k() {}", "k")


def test_threads_may_share_a_library():
    made = cpp('extern "C" void fill(float* x, long n, float v) { for (long i = 0; i < n; i++) x[i] = v; }')
    tensors = [torch.empty(1000) for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: made.fill(pair[1], 1000, float(pair[0])), enumerate(tensors)))
    assert [float(t.sum()) for t in tensors] == [1000.0 * i for i in range(8)]
