"""Products of the Triton emitter: which are kernels of its own, and that every variant is right and compiles."""

from __future__ import annotations

import json
import re

import pytest
from conftest import problem
from test_codegen_triton import PROBLEMS, assert_compiled, cases_of, compile_kernels, results_of

from kernelwright.codegen import Graph, default_schedule, generate, schedule_space
from kernelwright.codegen._capture import capture_entry

SCRIPT = "codegen_triton_products.py"
CASES = cases_of(SCRIPT)
results = results_of(SCRIPT, CASES)
SHARED_BYTES = 232448  # an H100's, for one block
WEIGHTS = "self.w = nn.Parameter(torch.randn({n}, {k}))\nself.b = nn.Parameter(torch.randn({n}))"


def graph_of(forward, inputs, init="", variants=(), constants=""):
    source = problem(forward, inputs, init=init, constants=constants)
    payload = {"source": source, "variant": variants[0] if variants else {}, "variants": list(variants)}
    return Graph.from_json(json.loads(json.dumps(capture_entry(payload))))


def product_of(dtype, variants, body="return F.gelu(x @ w)", shapes=("M, K", "K, N")):
    inputs = ", ".join(f"torch.randn({shape}, dtype=torch.{dtype})" for shape in shapes)
    constants = "\n".join(f"{name} = {size}" for name, size in variants[0].items())
    return graph_of(f"# x w\n{body}", inputs, variants=variants, constants=constants)


def sized(graph, sizes):
    """A graph with the first variant's sizes replaced: as if it had been captured in a large shape."""
    text = graph.to_json()
    for before, after in sizes.items():
        text = text.replace(f'"sizes": [{before}, ', f'"sizes": [{after}, ')
    return Graph.from_json(text)


def kinds_of(graph, **schedule):
    return [entry["kind"] for entry in generate(graph, schedule, backend="triton").report if entry["kind"] != "note"]


# ------------------------------------------------------------------------------------------------ every variant


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_product_in_the_interpreter(results, name):
    assert results[name] == "ok", results[name]


# ------------------------------------------------------------------------------------------------ it compiles

COMPILED = {
    "ieee": ("float32", {"precision": "ieee"}),
    "tf32x3": ("float32", {"precision": "tf32x3", "BLOCK_M": 128, "BLOCK_N": 128, "GEMM_STAGES": 5}),
    "fp16x3": ("float32", {"gemm": "fp16x3"}),
    "bf16x6": ("float32", {"gemm": "bf16x6", "splits": 4, "persistent": True, "BLOCK_M": 64}),
    "halves": ("bfloat16", {}),
    "split": ("float16", {"splits": 4, "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 128, "GEMM_STAGES": 5}),
    "all": ("bfloat16", {"descriptors": True, "persistent": True, "BLOCK_N": 256, "BLOCK_K": 128, "GEMM_STAGES": 5}),
}
ALIGNED = [{"M": 1024, "N": 1024, "K": 1024}, {"M": 40, "N": 88, "K": 104}]


@pytest.fixture(scope="module")
def compiled(taken):
    candidates = {}
    for name in (n for n in COMPILED if n in taken("name")):
        dtype, schedule = COMPILED[name]
        graph = product_of(dtype, ALIGNED)
        source = generate(graph, {"gemm": "own", **schedule}, backend="triton").source
        candidates[name] = source, graph.module_source, ALIGNED[0], 90, 100
    return compile_kernels(candidates)


@pytest.mark.matrix
@pytest.mark.parametrize("name", COMPILED)
def test_product_compiles_for_a_gpu(compiled, name):
    found = compiled[name]
    assert_compiled(found, (90, 100))
    assert all(launch["shared_bytes"] <= SHARED_BYTES for launch in found["launches"])
    texts = "".join(launch["ptx"] for launch in found["launches"] if launch["architecture"] == 90)
    assert ("wgmma" in texts) == (name != "ieee"), "matrix units multiply halves, and float32 only where they are asked"
    assert ("cp.async.bulk.tensor" in texts) == (name == "all")


# ------------------------------------------------------------------------------------------------ defaults


def test_a_large_product_of_float32_is_the_librarys_where_there_is_other_work():
    linear = WEIGHTS.format(n=256, k=64)
    followed = graph_of("return F.gelu(F.linear(x, self.w, self.b))", "torch.randn(8, 64)", linear)
    assert default_schedule(followed, backend="triton")["gemm"] == "library"
    assert kinds_of(followed) == ["torch", "nest"]
    assert kinds_of(followed, gemm="own") == ["own_matmul"]
    alone = graph_of("# x w\nreturn x @ w", "torch.randn(8, 64), torch.randn(64, 256)")
    assert kinds_of(alone) == ["own_matmul"]
    small = graph_of("# x w\nreturn (x @ w).relu()", "torch.randn(5, 8, 64), torch.randn(5, 64, 128)")
    assert kinds_of(small) == ["own_matmul"]


def test_a_product_of_float32_that_is_worth_it_can_be_computed_on_matrix_units():
    """Each side is taken apart by kernels of its own. It is no default, since nothing was measured."""
    large, m, n, k = {"M": 1024, "N": 2048, "K": 1024}, 1024, 2048, 1024
    followed = product_of("float32", [large, ALIGNED[1]])
    assert schedule_space(followed, backend="triton")["gemm"] == ["library", "fp16x3", "bf16x6", "own"]
    alone = product_of("float32", [large, ALIGNED[1]], "return x @ w")
    assert schedule_space(alone, backend="triton")["gemm"] == ["own", "fp16x3", "bf16x6", "library"]
    moved = {}
    for scheme, launches in {"own": 1, "bf16x6": 3, "fp16x3": 5}.items():
        made = generate(followed, {"gemm": scheme}, backend="triton")
        assert made.launches == launches
        moved[scheme] = made.bytes_moved
    assert moved["own"] == 4 * (m * k + k * n + m * n)
    assert moved["bf16x6"] == moved["own"] + 2 * 6 * (m * k + k * n)
    assert moved["fp16x3"] == moved["own"] + (2 * 4 + 4) * (m * k + k * n), "sides are read again for their scales"
    split = generate(followed, {"gemm": "own", "splits": 4}, backend="triton")
    assert split.bytes_moved == moved["own"] + 2 * 4 * 4 * m * n
    for sizes in ({**large, "K": 32}, {**large, "M": 16}):
        narrow = product_of("float32", [sizes, ALIGNED[1]])
        assert not {"fp16x3", "bf16x6"} & {*schedule_space(narrow, backend="triton")["gemm"]}, "parts would take longer"


def test_products_of_halves_and_small_ones_stay_own_beside_the_librarys():
    forward = "# x w h\nreturn (x @ w).relu(), (h @ h.mT).relu(), (x[:, :8] @ w[:8, :100]).relu()"
    graph = graph_of(forward, "torch.randn(8, 300), torch.randn(300, 300), torch.randn(200, 200).half()")
    assert schedule_space(graph, backend="triton")["gemm"] == ["mixed", "library", "own"]
    assert sorted(kinds_of(graph)) == ["nest", "own_matmul", "own_matmul", "torch"]


def test_what_follows_a_product_of_the_library_is_one_nest_in_its_memory():
    forward = "# x r\nreturn F.gelu(F.linear(x, self.w, self.b) * 0.5 + r)"
    graph = graph_of(forward, "torch.randn(8, 64), torch.randn(8, 256)", WEIGHTS.format(n=256, k=64))
    made = generate(graph, backend="triton")
    assert kinds_of(graph) == ["torch", "nest"]
    assert "torch.empty" not in made.source
    reshaped = graph_of("return F.linear(x, self.w).view(2, 4, 256).relu()", "torch.randn(8, 64)",
                        WEIGHTS.format(n=256, k=64))  # fmt: skip
    assert "torch.empty((2, 4, 256)" in generate(reshaped, backend="triton").source, "the result has another shape"


@pytest.mark.parametrize("bias", ["F.linear(x, self.w, self.b)", "x @ self.w.t() + self.b", "x @ self.v + self.b"])
def test_the_library_adds_a_bias_that_nothing_follows(bias):
    init = WEIGHTS.format(n=256, k=64) + "\nself.v = nn.Parameter(torch.randn(64, 256))"
    graph = graph_of(f"return {bias}, x.exp()", "torch.randn(8, 64)", init)
    assert kinds_of(graph) == ["torch", "nest"]
    assert re.search(r"F\.linear\(x, \w+(\.t\(\))?, \w+\)", generate(graph, backend="triton").source)
    alone = graph_of(f"return {bias}", "torch.randn(8, 64)", init)
    assert kinds_of(alone) == ["torch", "nest"], "without the bias no kernel would be left"


def test_tiles_of_halves_grow_with_the_product():
    graph = product_of("bfloat16", [{"M": 7, "N": 11, "K": 13}, {"M": 40, "N": 88, "K": 104}])
    found = {}
    for name, sizes in {"large": (4096, 4096, 4096), "few": (512, 512, 4096), "flat": (16, 8192, 4096)}.items():
        schedule = default_schedule(sized(graph, dict(zip((7, 11, 13), sizes, strict=True))), backend="triton")
        found[name] = tuple(schedule[key] for key in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GEMM_WARPS", "GEMM_STAGES"))
    assert found == {"large": (128, 256, 64, 8, 3), "few": (64, 64, 64, 4, 4), "flat": (16, 64, 64, 4, 4)}


def test_choices_about_products_are_offered_where_they_apply():
    graph = product_of("bfloat16", [{"M": 7, "N": 11, "K": 13}, {"M": 40, "N": 88, "K": 104}])

    def offered(*sizes):
        space = schedule_space(sized(graph, dict(zip((7, 11, 13), sizes, strict=True))), backend="triton")
        return {"splits", "persistent", "descriptors", "precision"} & set(space)

    assert offered(4096, 4096, 4096) == {"persistent", "descriptors"}
    assert offered(64, 256, 4096) == {"splits", "descriptors"}
    assert offered(64, 256, 4095) == {"splits"}, "rows of 8190 bytes are not aligned"
    assert offered(64, 256, 256) == {"descriptors"}
    float32 = schedule_space(product_of("float32", ALIGNED), backend="triton")
    assert float32["precision"] == ["tf32x3", "ieee"]


def test_halves_reach_the_matrix_unit_as_they_are():
    source = generate(product_of("bfloat16", ALIGNED), backend="triton").source
    before = source[source.index("for start in range") : source.index("tl.dot")]
    assert "float32" not in before
    assert "acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)" in source


def test_products_of_built_in_problems_are_unfused_only_by_the_librarys():
    """A feed-forward block in float32: two calls, and one kernel after each."""
    item = PROBLEMS["level3/mlp_block"]
    variants = item.meta.variants_for("gpu")[1:]
    graph = Graph.from_json(capture_entry({"source": item.source, "variant": variants[0], "variants": variants}))
    assert kinds_of(graph) == ["torch", "nest", "torch", "nest"]
