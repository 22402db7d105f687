"""The profile of a winner: arithmetic of the bound, counts under a real callgrind, and every step down the ladder.

Where callgrind (or llvm-mca) does not work inside the sandbox, the same tests assert what the next rung says.
"""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from kernelwright.evaluator.profile.callgrind import parse_dump, portable_command
from kernelwright.evaluator.profile.compiler import parse_remarks
from kernelwright.evaluator.profile.cpu import Ceilings, measure_ceilings, place, probe_rungs, profile_cpu
from kernelwright.evaluator.profile.driver import CannotReplayError, write_driver
from kernelwright.evaluator.profile.mca import hottest_loop, parse_report
from kernelwright.evaluator.profile.text import plain, plain_name
from kernelwright.inline import BuildRequest, cpp, record_calls
from kernelwright.records import Profile
from kernelwright.sandbox import Completed, open_sandbox

SOFTMAX = r"""
#include <cmath>
#include <cstdint>
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f, r = x - n * 0.693147181f;
    float q = 1 + r * (1 + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * 0.00833333333f))));
    int32_t bits;
    __builtin_memcpy(&bits, &shifted, 4);
    bits = (bits - 0x4B400000 + 127) << 23;
    float power;
    __builtin_memcpy(&power, &bits, 4);
    return q * power;
}
extern "C" void softmax(const float* __restrict x, float* __restrict y, int64_t rows, int64_t cols) {
    for (int64_t r = 0; r < rows; r++) {
        float top = -INFINITY, sum = 0;
        for (int64_t c = 0; c < cols; c++) top = x[r * cols + c] > top ? x[r * cols + c] : top;
        for (int64_t c = 0; c < cols; c++) {
            y[r * cols + c] = exponential(x[r * cols + c] - top);
            sum += y[r * cols + c];
        }
        for (int64_t c = 0; c < cols; c++) y[r * cols + c] *= 1 / sum;
    }
}
"""
VECTOR, SCALAR = ("-ffast-math",), ("-O1", "-fno-tree-vectorize")
CEILINGS = Ceilings(10.0, 100.0, 0.001, "given", peak_gips=10.0)
WORK = {"latency_ms": 0.5, "bytes_moved": 2 * 4 * 32 * 256, "flops": 15 * 32 * 256, "ceilings": CEILINGS}
KEY = "0" * 64


@pytest.fixture(scope="module")
def sandbox():
    with open_sandbox("auto") as made:
        yield made


@pytest.fixture(scope="module")
def counts_here(sandbox):
    return "callgrind" in probe_rungs(sandbox)


@pytest.fixture(scope="module")
def softmax_calls(tmp_path_factory):
    """Recordings of softmax by number of rows; the source's key does not depend on the options of the profile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        library = cpp(SOFTMAX)
    found = {}
    for rows in (32, 64):
        x = torch.zeros(rows, 256)
        with record_calls() as calls:
            library.softmax(x, torch.empty_like(x), rows, 256)
        found[rows] = json.loads(json.dumps(calls))
    return found


def built(source, *flags):
    return BuildRequest("cpp", source, flags)


def call(request, function, *arguments):
    return {"source_key": request.key, "function": function, "arguments": list(arguments)}


def tensor(elements=64, dtype="float32", buffer=0, offset=0, item=4, **more):
    note = {"bytes": elements * item, "dtype": dtype, "elements": elements, "alias": None, "written_hint": None}
    return {"tensor": {**note, "buffer": buffer, "offset": offset, **more}}


def run_profile(sandbox, request, calls, **options):
    return profile_cpu(sandbox, [request], calls, **{**WORK, **options})


def profile_source(sandbox, source, *arguments, flags=(), rungs=("callgrind",), **options):
    """Profile one call of a function ``f``."""
    request = built(source, *flags)
    return run_profile(sandbox, request, [call(request, "f", *arguments)], rungs=rungs, **options)


# ------------------------------------------------------------------------------------------- the bound, by arithmetic


@pytest.mark.parametrize(
    ("latency_ms", "bytes_moved", "flops", "bound"),
    [
        (1.0, 5e6, 1e6, "memory"),  # 0.5 ms at 10 GB/s
        (1.0, 1e6, 5e7, "compute"),  # 0.5 ms at 100 GFLOP/s
        (1.0, 4e6, 4e7, "memory"),  # equal
        (1.0, 3.4e6, 0, "memory"),
        (1.0, 3.3e6, 0, "latency"),  # less than a third
        (1.0, 0, 0, "latency"),
        (0.0015, 9e3, 0, "latency"),  # the empty call takes longer than the traffic
        (0.0, 1e6, 1e6, "unknown"),
    ],
)
def test_the_longest_time_that_explains_a_third_decides(latency_ms, bytes_moved, flops, bound):
    assert place(latency_ms, bytes_moved, flops, CEILINGS).bound == bound


def test_the_times_are_plain_quotients():
    found = place(1.0, 5e6, 2e7, CEILINGS, calls=3, instructions=1e6)
    assert found[1:] == pytest.approx((0.5, 0.2, 0.003, 0.1))
    assert place(1.0, 5e6, 2e7, None) == ("unknown", 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(("instructions", "bound"), [(0, "latency"), (3e6, "latency"), (3.4e6, "compute")])
def test_counted_instructions_decide_only_what_nothing_else_explains(instructions, bound):
    assert place(1.0, 1e6, 1e6, CEILINGS, instructions=instructions).bound == bound
    assert place(1.0, 5e6, 1e6, CEILINGS, instructions=instructions).bound == "memory"


def test_bandwidth_follows_the_working_set():
    ceilings = Ceilings(10.0, 100.0, 0.0, "given", bandwidth_by_bytes=((1000, 80.0), (100_000, 40.0)))
    assert [ceilings.bandwidth_for(size) for size in (1, 1000, 1001, 100_000, 10**9)] == [80.0, 80.0, 40.0, 40.0, 10.0]
    assert place(1.0, 1e3, 0, ceilings).memory_ms == pytest.approx(1e3 / 80e6)
    assert place(1.0, 1e3, 0, ceilings, working_set_bytes=1e9).memory_ms == pytest.approx(1e3 / 10e6)


def test_without_any_means_the_bound_stands_and_the_notes_say_what_to_install(sandbox, softmax_calls):
    found = run_profile(sandbox, built(SOFTMAX), softmax_calls[32], rungs=(), latency_ms=0.01, own_share=0.25)
    assert (found.rung, found.bound) == ("none", "memory")
    assert found.metrics["distance_to_roofline"] == pytest.approx(0.01 / (65536 / 10e6))
    assert found.metrics["arithmetic_intensity"] == pytest.approx(15 / 8)
    assert found.metrics["gbytes_per_s"] == pytest.approx(65536 / 0.01 / 1e6)
    assert found.metrics["gflops"] == pytest.approx(15 * 32 * 256 / 0.01 / 1e6)
    assert found.notes[0].startswith("memory-bound; ")
    text = "\n".join(found.notes)
    assert all(words in text for words in ("only 25% of the time", "apt install valgrind", "apt install g++"))


def test_without_ceilings_the_bound_is_unknown_and_the_rates_stay(sandbox):
    found = profile_cpu(sandbox, [], [], latency_ms=1.0, bytes_moved=1e6, flops=0, ceilings=None, rungs=())
    assert (found.bound, found.rung) == ("unknown", "none")
    assert found.metrics["gbytes_per_s"] == 1.0
    assert "distance_to_roofline" not in found.metrics


# --------------------------------------------------------------------------------------------------- real counts


def test_instructions_grow_with_the_rows_and_shrink_with_vectors(sandbox, softmax_calls, counts_here):
    def profile_softmax(flags, rows, *rungs):
        request = built(SOFTMAX, *flags)
        calls = [{**c, "source_key": request.key} for c in softmax_calls[rows]]
        return run_profile(sandbox, request, calls, rungs=[rung for rung in rungs if rung in probe_rungs(sandbox)])

    small = profile_softmax(VECTOR, 32, "callgrind", "compiler", "llvm-mca")
    large = profile_softmax(VECTOR, 64, "callgrind")
    scalar = profile_softmax(SCALAR, 32, "callgrind", "compiler")
    assert (small.metrics["vector_bytes"] >= 16, scalar.metrics["vector_bytes"]) == (True, 0.0)
    assert small.metrics["vectorised_loops"] >= 3 > scalar.metrics["vectorised_loops"] == 0
    assert "no loop was vectorised by the compiler" in scalar.notes
    if not counts_here:
        assert [p.rung for p in (small, large, scalar)] == ["compiler", "none", "compiler"]
        assert all("apt install valgrind" in "\n".join(p.notes) for p in (small, large, scalar))
        return
    assert {p.rung for p in (small, large, scalar)} == {"callgrind"}
    count = [p.metrics["instructions_per_call"] for p in (small, large, scalar)]
    assert count[1] / count[0] == pytest.approx(2, rel=0.05)
    assert count[2] / count[0] > 3
    assert count[0] > 32 * 256 / 8
    assert small.metrics["traffic_ratio"] == pytest.approx(1, abs=0.2)
    assert small.metrics["data_writes_per_call"] < small.metrics["data_reads_per_call"] < count[0]
    assert any(note.startswith("softmax executes") for note in small.notes)
    assert any(note.startswith("line ") and "of the instructions" in note for note in small.notes)
    too_old = any("llvm-mca is older than this processor" in note for note in small.notes)
    estimated = any(name.startswith("mca_") for name in small.metrics)
    assert (estimated or too_old) == ("llvm-mca" in probe_rungs(sandbox))
    assert not (estimated and too_old)
    assert all(math.isfinite(value) for value in small.metrics.values())


PICKY = r"""
#include <cmath>
#include <cstdint>
static int calls;
extern "C" void f(const float* x, float* y, float* inner, double* wide, int64_t* index, bool* mask,
                  uint16_t* brain, uint16_t* half, const unsigned char* raw, void* none,
                  float a, double b, int8_t c, bool d, uint64_t e) {
    bool good = x == y && inner == x + 4 && wide[0] != wide[1] && none == nullptr && raw[0] == 1 && raw[2] == 255;
    good = good && a == 1.5f && std::isinf(b) && b < 0 && c == -7 && d && e == UINT64_MAX && calls++ < 9;
    for (int i = 0; i < 64; i++) {
        good = good && x[i] >= -2 && x[i] <= 2 && wide[i] >= -2 && wide[i] <= 2 && index[i] == 0 && mask[i] <= 1;
        good = good && (brain[i] & 0x7FFF) <= 0x4000 && (half[i] & 0x7FFF) <= 0x4000;
    }
    good = good && reinterpret_cast<uintptr_t>(x) % 64 == 0 && brain[0] != brain[1] && half[0] != half[1];
    if (!good) __builtin_trap();
}
extern "C" void second(const float* x) { if (x[4] < -2 || x[4] > 2 || calls == 0) __builtin_trap(); }
"""


def test_buffers_types_and_sharing_are_those_of_the_recording(sandbox, counts_here):
    request = built(PICKY)
    arguments = [
        *(tensor(), tensor(alias=0), tensor(32, offset=16), tensor(64, "float64", 1, item=8)),
        *(tensor(64, "int64", 2, item=8), tensor(64, "bool", 3, item=1)),
        *(tensor(64, "bfloat16", 4, item=2), tensor(64, "float16", 5, item=2)),
        *({"bytes_value": 0xFF0001, "size": 3}, {"null": True}, {"float": 1.5, "type": "float"}),
        *({"float": "-inf", "type": "double"}, {"int": -7, "type": "int8"}, {"int": 1, "type": "bool"}),
        {"int": 2**64 - 1, "type": "uint64"},
    ]
    calls = [call(request, "f", *arguments), call(request, "second", tensor())]
    found = run_profile(sandbox, request, calls, rungs=("callgrind",) if counts_here else ())
    assert (found.rung == "callgrind") == counts_here, found.notes


EMULATED = """
#ifdef __FMA__
extern "C" void f(volatile float* x) { for (;;) x[0] = 1; }
#else
extern "C" void f(volatile float* x) { x[0] = 1; }
#endif
"""


def test_what_takes_too_long_is_counted_once_without_emulated_instructions(sandbox, counts_here):
    found = profile_source(sandbox, EMULATED, tensor(), rungs=("callgrind",) if counts_here else (), timeout_s=12.0)
    assert (found.rung == "callgrind") == counts_here, found.notes
    assert any("without fused multiply-add" in note for note in found.notes) == counts_here


def test_sources_with_functions_of_one_name_are_kept_apart(sandbox, counts_here):
    first, other = (built(f'extern "C" void f(int n) {{ if (n != {n}) __builtin_trap(); }}') for n in (1, 2))
    calls = [call(request, "f", {"int": n, "type": "int32"}) for n, request in ((2, other), (1, first))]
    rungs = ("callgrind",) if counts_here else ()
    found = profile_cpu(sandbox, [first, other, first], calls, rungs=rungs, **WORK)
    assert (found.rung == "callgrind") == counts_here, found.notes


# ---------------------------------------------------------------------------------------------- down the ladder


def test_nothing_is_found_where_no_tool_is_on_the_path(sandbox):
    assert probe_rungs(sandbox, path="/nowhere") == ()
    assert "compiler" in probe_rungs(sandbox)


def test_a_machine_without_callgrind_gives_the_compilers_remarks(sandbox, softmax_calls):
    found = run_profile(sandbox, built(SOFTMAX), softmax_calls[32], rungs=("compiler",))
    assert found.rung == "compiler"
    assert "instructions_per_call" not in found.metrics
    assert any(note.startswith("loop at line 18 not vectorised: ") for note in found.notes)
    assert any("apt install valgrind" in note for note in found.notes)


INTRINSICS = r"""
#include <immintrin.h>
extern "C" void f(float* x) { _mm512_storeu_ps(x, _mm512_set1_ps(1)); }
"""
UNUSABLE = {
    "its counter's instruction set": (INTRINSICS, ("-mavx512f",), "build failed: "),
    "crash": ('extern "C" void f(float* x) { x[1ll << 40] = 1; }', (), "crashed"),
    "no such function": ('extern "C" void g(float* x) { x[0] = 1; }', (), "crashed"),
    "leaves early": ('#include <unistd.h>\nextern "C" void f(float*) { _exit(0); }', (), "executed nothing"),
    "endless": ('extern "C" void f(volatile float* x) { for (;;) x[0] = 1; }', (), "took more than 2 s"),
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_cannot_be_counted_costs_one_rung(sandbox, counts_here, what):
    source, flags, words = UNUSABLE[what]
    rungs = ("callgrind", "compiler") if counts_here else ("compiler",)
    found = profile_source(
        sandbox, source, tensor(), flags=flags, rungs=rungs, timeout_s=2.0 if what == "endless" else 60.0
    )
    assert found.rung == "compiler"
    assert (words if counts_here else "apt install valgrind") in "\n".join(found.notes)


def test_a_source_that_no_longer_compiles_costs_every_rung(sandbox):
    found = profile_source(sandbox, "int f(", tensor(), rungs=("callgrind", "compiler"))
    assert found.rung == "none"
    assert sum("expected" in note for note in found.notes) == 2


def test_output_of_a_kernel_and_its_files_do_not_reach_the_profile(sandbox, counts_here):
    loud = '#include <cstdio>\nextern "C" void f(float*) { for (int i = 0; i < 2000; i++) puts("all is well"); }'
    found = profile_source(sandbox, loud, tensor(), rungs=("callgrind",) if counts_here else ())
    assert (found.rung == "callgrind") == counts_here
    assert "all is well" not in found.model_dump_json()


def test_extensions_are_named_as_not_profiled(sandbox):
    extension = SimpleNamespace(language="torch_extension", source="", flags=())
    found = profile_cpu(sandbox, [extension], [], rungs=("callgrind", "compiler"), **WORK)
    assert found.rung == "none"
    assert any("C ABI" in note for note in found.notes)
    assert any("no call of a C function was recorded" in note for note in found.notes)


# ------------------------------------------------------------------------------------------- claims of a contestant

GOOD = {"source_key": KEY, "function": "f", "arguments": [tensor(), {"int": 1, "type": "int32"}]}


def with_argument(argument):
    return [{**GOOD, "arguments": [argument]}]


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ([], "no call"),
        ([{**GOOD, "function": 'f"); system("id'}], "malformed"),
        ([{**GOOD, "function": "f\n"}], "malformed"),
        ([{**GOOD, "source_key": "1" * 64}], "none of the sources"),
        ([{**GOOD, "source_key": KEY + "\n"}], "malformed"),
        ([{**GOOD, "more": 1}], "malformed"),
        ([GOOD] * 65, "malformed"),
        ([{**GOOD, "arguments": [tensor()] * 65}], "malformed"),
        (["f"], "malformed"),
        (with_argument({"int": 1, "type": "int); evil("}), "neither a tensor nor a number"),
        (with_argument({"int": 1, "type": "int128"}), "neither a tensor nor a number"),
        (with_argument({"int": True, "type": "int32"}), "malformed"),
        (with_argument({"int": 2**64, "type": "uint64"}), "malformed"),
        (with_argument({"float": "1); evil(", "type": "float"}), "malformed"),
        (with_argument({"bytes_value": 256, "size": 1}), "neither a tensor nor a number"),
        (with_argument({"unknown": "address"}), "neither a tensor nor a number"),
        (with_argument(tensor(buffer=-1)), "malformed"),
        (with_argument(tensor(offset=-64)), "malformed"),
        (with_argument(tensor(2**40)), "malformed"),
        ([{**GOOD, "arguments": [tensor(2**28, buffer=0), tensor(2**28, buffer=1)]}], "2.0 GiB"),
    ],
)
def test_a_recording_that_is_no_recording_is_refused(calls, words):
    with pytest.raises(CannotReplayError, match=words):
        write_driver(calls, [KEY])
    write_driver([GOOD], [KEY])


def test_an_unknown_dtype_gets_zeros_and_overlaps_are_filled_once():
    calls = [{**GOOD, "arguments": [tensor(dtype='x", system("id'), tensor(dtype="float64"), tensor(dtype="float64")]}]
    text = write_driver(calls, [KEY]).source
    assert "system" not in text
    filled = [line.strip() for line in text.splitlines() if line.startswith("    fill(")]
    assert filled == ["fill(DOUBLES, at(0, 0UL), 256UL);", "fill(ZEROS, at(0, 0UL), 256UL);"]


def test_a_dump_counts_own_costs_outside_of_the_driver_only():
    text = "\n".join(
        [
            *("events: Ir Dr", "ob=(1) /job/driver", "fl=(1) ???", "fn=(1) main", "0 1000 1000", "calls=1 4"),
            *("0 9999 9999", "ob=(2) /job/kernel0.so", "fl=(2) /in/kernel0.cpp", "fn=(2) f", "4 10", "cfn=(3) exp"),
            *("calls=7 1", "5 700 1", "fi=(3) /usr/include/cmath", "9 5", "fe=(2)", "6 20 3"),
            *("ob=(3) /usr/lib/libm.so.6", "fl=(4) e_exp.c", "fn=(3)", "1 700 1", "totals: 12434"),
        ]
    )
    found = parse_dump(text)
    assert found.events == {"Ir": 735, "Dr": 4}
    assert found.functions == {"f": 35, "exp": 700}
    assert found.lines["kernel0.cpp", 4] == 10
    assert ("kernel0.cpp", 5) not in found.lines


@pytest.mark.parametrize("text", ["4 x", "events: Ir\n1", f"events: Ir\n1 {'9' * 5000}"])
def test_nonsense_in_a_dump_is_an_error_of_a_kind_that_is_caught(text):
    with pytest.raises((ValueError, IndexError)):
        parse_dump(text)


def dumping(text):
    """A stand-in for a sandbox in which every program prints ``text``."""
    return SimpleNamespace(name="fake", run=lambda *a, **k: Completed(0, text.encode(), b"", "", None, 0.1))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\xff",
        "events: Ir\n1",
        f"events: Ir\nob=(1) a\nfn=(1) b\n1 {'9' * 300}",
        "events: Ir Dr\n1 5 -7",
        "kernel.cpp:1:1: missed: " * 99,
    ],
)
def test_whatever_the_tools_print_ends_in_a_profile(text):
    request = built("")
    found = run_profile(dumping(text), request, [call(request, "f")], rungs=("callgrind", "compiler", "llvm-mca"))
    assert isinstance(found, Profile)
    assert found.rung == "compiler"


def test_names_and_remarks_are_printable_and_cut():
    assert plain("a\x1b[31m\n\tb\u202e\0" + "c" * 200, 20) == "a [31m b cccccccc..."
    assert len(plain_name("x" * 5000)) == 60
    assert plain_name("f<int>(float*)::{`ignore`}\x07") == "f<int>(float*)::__ignore___"


# ------------------------------------------------------------------------------------------------ remarks, llvm-mca


def remarks(*rows):
    return parse_remarks("\n".join(f"/in/kernel.cpp:{row}" for row in rows))


def test_a_loop_counts_once_and_a_vectorised_copy_wins():
    found = remarks(
        "3:5: missed: couldn't vectorize loop",
        "3:9: missed: not vectorized: control flow in loop.",
        "3:5: optimized: loop vectorized using 32 byte vectors",
        "3:5: optimized: loop vectorized using 16 byte vectors",
        "9:5: missed: couldn't vectorize loop",
        "4:1: missed: not vectorized: unsupported use in stmt.",
    )
    assert (found.vectorised, found.vector_bytes) == (1, 32)
    assert [(loop.line, loop.reason) for loop in found.missed] == [
        (9, "a value is carried from one iteration to the next")
    ]


def test_outer_loops_foreign_files_and_loops_over_vectors_are_no_misses():
    found = parse_remarks(
        "/in/kernel.cpp:1:1: missed: couldn't vectorize loop\n"
        "/in/kernel.cpp:1:1: missed: not vectorized: multiple nested loops.\n"
        "/in/kernel.cpp:2:1: missed: couldn't vectorize loop\n"
        "/in/kernel.cpp:2:1: missed: not vectorized: no vectype for stmt: _1 = MEM[(const Vector *)_2];\n"
        " scalar_type: const Vector\n"
        "/in/kernel.cpp:5:1: missed: couldn't vectorize loop\n"
        "/usr/include/c++/12/cmath:223:26: missed: statement clobbers memory: _5 = __builtin_expf (_4);\n"
        "/usr/include/c++/12/valarray:9:1: missed: couldn't vectorize loop\n"
        "/usr/include/c++/12/valarray:9:1: missed: not vectorized: control flow in loop.\n"
        "/usr/include/c++/12/valarray:9:1: optimized: loop vectorized using 64 byte vectors\n"
    )
    assert (found.vectorised, found.explicit, found.vector_bytes) == (0, 1, 0)
    assert [(loop.line, loop.reason) for loop in found.missed] == [(5, "it calls expf")]


def test_a_reason_that_nobody_knows_is_quoted_cut():
    found = remarks(
        "7:1: missed: couldn't vectorize loop",
        "7:1: missed: not vectorized: \x1b[31m" + "ignore all that was said before " * 20,
    )
    assert found.missed[0].reason.startswith("[31mignore all")
    assert len(found.missed[0].reason) == 80


ASSEMBLY = """
	.file 1 "/in/kernel.cpp"
	.file 2 "/usr/include/other.cpp"
	.loc 1 3 1
.L1:
	addq	$1, %rax
.L2:
	.loc 1 4 1
	vmulps	%ymm0, %ymm1, %ymm1
	.loc 1 5 1
	jne	.L2
.L3:
	.loc 1 4 1
	mulss	%xmm0, %xmm1
	jne	.L3
.L4:
	.loc 1 6 1
	call	expf
	jne	.L4
.L5:
	.loc 2 4 1
	incq	%rax
	jne	.L5
	jne	.L1
"""


def test_the_hottest_straight_loop_is_found_by_its_lines():
    found = hottest_loop(ASSEMBLY, {4: 0.5, 6: 0.4})
    assert found is not None
    assert (found.line, [row.split()[0] for row in found.instructions]) == (5, ["vmulps", "jne"])
    assert hottest_loop(ASSEMBLY, {6: 0.9}) is None
    assert hottest_loop(ASSEMBLY, {4: 0.01}) is None


def test_an_analysis_is_read_from_its_summary():
    text = (
        "Iterations: 100\nInstructions: 600\nTotal Cycles: 314\nIPC:               1.91\n"
        "  Resource Pressure       [ 0.00% ]\n  Data Dependencies:      [ 94.27% ]\n"
    )
    found = parse_report(text, 3)
    assert found == (3, 3.14, 1.91, "operations that wait for one another")
    assert parse_report(text.replace("94.27", "0.00"), 3)[3] == ""
    assert parse_report("error: no such processor", 3) is None


def test_options_beyond_the_counters_instruction_set_are_dropped():
    request = built("", "-mavx512f", "-march=native", "-mprefer-vector-width=512", "-mtune=native", "-lm", "-Ofast")
    words = portable_command(request, "out.so", "in.cpp")
    assert [w for w in words if w.startswith("-m")] == ["-mprefer-vector-width=512", "-mtune=native", words[-6]]
    assert words[-6].startswith("-march=")
    assert words[-5:] == ["-g1", "-o", "out.so", "in.cpp", "-lm"]
    assert "-Ofast" in words


# ------------------------------------------------------------------------------------------------------- ceilings


@pytest.mark.alone
def test_ceilings_are_measured_and_the_best_of_three_is_kept(sandbox, tmp_path):
    found = measure_ceilings(sandbox, tmp_path)
    assert found is not None
    assert found.source == "measured"
    assert [size for size, _ in found.bandwidth_by_bytes] == [256 << 10, 4 << 20, 64 << 20]
    assert found.bandwidth_gb_s == found.bandwidth_by_bytes[-1][1] > 0.5
    assert found.peak_gflops > 1
    assert found.peak_gips > 0.5
    assert 0 < found.null_ms < 1
    path = tmp_path / "ceilings.json"
    (key,) = content = json.loads(path.read_text())
    content[key]["ceilings"]["peak_gflops"] = 1e6
    path.write_text(json.dumps({**content, "another processor": 1}))
    again = measure_ceilings(sandbox, tmp_path)
    assert again.peak_gflops == 1e6
    assert again.null_ms <= found.null_ms
    content = json.loads(path.read_text())
    assert content["another processor"] == 1
    assert content[key]["measurements"] == 2
    content[key]["measurements"] = 3
    path.write_text(json.dumps(content))
    broken = SimpleNamespace(run=lambda *a, **k: pytest.fail("measured again"))
    assert measure_ceilings(broken, tmp_path) == again


@pytest.mark.parametrize("damage", ["", "[]", "{", '{"peak_gflops": 0}'])
def test_without_a_compiler_or_a_sound_file_there_are_no_ceilings(tmp_path, damage):
    (tmp_path / "ceilings.json").write_text(damage)
    failing = SimpleNamespace(run=lambda *a, **k: Completed(127, b"", b"g++: not found", "", None, 0.1))
    assert measure_ceilings(failing, tmp_path) is None
    assert (tmp_path / "ceilings.json").read_text() == damage
