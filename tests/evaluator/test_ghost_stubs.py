"""Ghost products: what is stubbed, what is kept, and that no product or source can hurt whoever patches it."""

from __future__ import annotations

import ctypes
import platform
import random
import struct
import subprocess

import pytest

from kernelwright.evaluator.own.ghost import GhostProduct, stub_functions

KERNELS = """
extern "C" void fill(float* x, int n) { for (int i = 0; i < n; i++) x[i] = 1.0f; }
extern "C" int count(float* x, int n) { x[0] = 5.0f; return n; }
"""
# Compiler options that make indirect calls land on a marked instruction, that instruction, and a return.
LANDINGS = {
    "x86_64": ("-fcf-protection=full", bytes.fromhex("f30f1efa"), bytes.fromhex("c3")),
    "aarch64": ("-mbranch-protection=bti", bytes.fromhex("5f2403d5"), bytes.fromhex("c0035fd6")),
}
LANDING_FLAG, LANDING, RETURN = LANDINGS[platform.machine()]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Compiles C++ to a shared object; equal requests once."""
    folder = tmp_path_factory.mktemp("products")
    known = {}

    def compile_source(source, *flags):
        if (source, flags) not in known:
            path = folder / f"{len(known)}.so"
            command = ["g++", "-O2", "-w", "-shared", "-fPIC", *flags, "-x", "c++", "-", "-o", str(path)]
            subprocess.run(command, input=source.encode(), check=True)
            known[source, flags] = path.read_bytes()
        return known[source, flags]

    return compile_source


@pytest.fixture
def load(tmp_path):
    def load_product(product):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.so"
        path.write_bytes(product)
        return ctypes.CDLL(str(path))

    return load_product


def buffer():
    return (ctypes.c_float * 4)(0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize("flags", [(), ("-Wl,--hash-style=sysv",), ("-Wl,--hash-style=gnu", "-s")])
def test_void_functions_return_at_once_and_others_still_run(compiled, load, flags):
    product = compiled(KERNELS, *flags)
    ghost = stub_functions(product, KERNELS)
    assert ghost.stubbed == ("fill",)
    assert ghost.kept == ("count",)
    assert ghost.reason == "not stubbed: count (it returns int32)"
    assert len(ghost.product) == len(product)
    x = buffer()
    load(product).fill(x, 4)
    assert list(x) == [1.0] * 4
    x = buffer()
    idle = load(ghost.product)
    idle.fill(x, 4)
    assert list(x) == [0.5] * 4
    assert idle.count(x, 3) == 3
    assert x[0] == 5.0


def test_the_landing_of_indirect_calls_stays(compiled, load):
    ghost = stub_functions(compiled(KERNELS, LANDING_FLAG), KERNELS)
    idle = load(ghost.product)
    entry = ctypes.cast(idle.fill, ctypes.c_void_p).value
    assert ctypes.string_at(entry, len(LANDING + RETURN)) == LANDING + RETURN
    x = buffer()
    idle.fill(x, 4)
    assert list(x) == [0.5] * 4


INDIRECT = """
extern "C" {
static void one(float* x) { x[0] = 1.0f; }
void (*choose())(float*) { return one; }
void work(float* x) __attribute__((ifunc("choose")));
int call(float* x) { work(x); return 7; }
}
"""
CLONES = """
extern "C" __attribute__((target_clones("avx2", "default"))) void work(float* x) { x[0] = 1.0f; }
extern "C" int call(float* x) { work(x); return 7; }
"""


@pytest.mark.parametrize("landing", [(), (LANDING_FLAG,)])
@pytest.mark.parametrize("binding", [(), ("-fno-semantic-interposition", "-Wl,-Bsymbolic", "-Wl,-z,now")])
@pytest.mark.parametrize("source", [INDIRECT] + [CLONES] * (platform.machine() == "x86_64"))
def test_indirect_functions_do_nothing_wherever_they_are_called_from(compiled, load, source, binding, landing):
    product = compiled(source, *binding, *landing)
    x = buffer()
    assert load(product).call(x) == 7
    assert x[0] == 1.0
    ghost = stub_functions(product, source)
    assert ghost.stubbed == ("work",)
    assert "call" in ghost.kept
    idle = load(ghost.product)
    x = buffer()
    idle.work(x)
    assert idle.call(x) == 7
    assert x[0] == 0.5


def test_every_version_of_a_symbol_is_stubbed(compiled, load, tmp_path):
    source = """
    extern "C" void old_fill(float* x) { x[0] = 1.0f; }
    extern "C" void new_fill(float* x) { x[0] = 2.0f; }
    __asm__(".symver old_fill, fill@V1");
    __asm__(".symver new_fill, fill@@V2");
    extern "C" void fill(float* x);
    """
    (tmp_path / "versions").write_text("V1 { global: fill; }; V2 { global: fill; local: *; } V1;")
    product = compiled(source, f"-Wl,--version-script={tmp_path / 'versions'}")
    ghost = stub_functions(product, source)
    assert (ghost.stubbed, ghost.kept, ghost.reason) == (("fill",), (), "")
    find = ctypes.CDLL(None).dlvsym
    find.restype = ctypes.c_void_p
    for image, results in ((product, [1.0, 2.0]), (ghost.product, [0.5, 0.5])):
        library = load(image)
        for version, expected in zip((b"V1", b"V2"), results, strict=True):
            x = buffer()
            address = find(ctypes.c_void_p(library._handle), b"fill", version)
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(ctypes.addressof(x))
            assert x[0] == expected


def test_names_that_share_an_address_are_stubbed_together_or_not_at_all(compiled):
    source = """
    extern "C" int value(float* x) { x[0] = 1.0f; return 3; }
    extern "C" void silent(float* x) __attribute__((alias("value")));
    extern "C" void one(float* x) { x[0] = 2.0f; }
    extern "C" void other(float* x) __attribute__((alias("one")));
    """
    ghost = stub_functions(compiled(source), source)
    assert ghost.stubbed == ("one", "other")
    assert ghost.kept == ("silent", "value")


def test_what_is_not_declared_with_c_linkage_is_kept_and_named(compiled):
    source = 'void mangled(float* x) { x[0] = 1.0f; }\nextern "C" void plain(float* x) { x[0] = 1.0f; }'
    ghost = stub_functions(compiled(source), source)
    assert ghost.stubbed == ("plain",)
    assert ghost.kept == ("_Z7mangledPf",)
    assert 'not declared extern "C"' in ghost.reason
    assert stub_functions(compiled(source), "") == GhostProduct(
        None,
        (),
        ("_Z7mangledPf", "plain"),
        'nothing was stubbed: _Z7mangledPf (it is not declared extern "C"), plain (it is not declared extern "C")',
    )


def test_two_declarations_of_one_name_decide_nothing(compiled):
    source = KERNELS + '#if 0\nextern "C" int fill(float* x, int n);\n#endif\n'
    ghost = stub_functions(compiled(KERNELS), source)
    assert ghost.stubbed == ()
    assert "fill (it is declared in two ways)" in ghost.reason


def test_macros_of_the_command_line_are_followed(compiled):
    source = 'extern "C" RESULT NAME(float* x) { x[0] = 1.0f; }'
    product = compiled(source, "-DRESULT=void", "-DNAME=fill")
    assert stub_functions(product, source, defines={"RESULT": "void", "NAME": "fill"}).stubbed == ("fill",)
    assert stub_functions(product, source).stubbed == ()


def test_a_python_extension_cannot_be_stubbed(compiled):
    source = 'extern "C" void* PyInit_kernel() { return 0; }\nextern "C" void fill(float* x) { x[0] = 1.0f; }'
    ghost = stub_functions(compiled(source), source)
    assert ghost == GhostProduct(None, (), (), "a Python extension cannot be stubbed: its functions return objects")


def test_a_product_without_functions(compiled):
    ghost = stub_functions(compiled("static int hidden;"), KERNELS)
    assert ghost == GhostProduct(None, (), (), "the product exports no function")


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (lambda data: b"", "cut short"),
        (lambda data: b"#!/bin/sh\n" * 10, "no little-endian ELF64 file"),
        (lambda data: data[:100], "cut short"),
        (lambda data: data[: len(data) // 4], "outside"),
        (lambda data: data[:4] + b"\x01" + data[5:], "no little-endian ELF64 file"),
        (lambda data: data[:16] + struct.pack("<H", 2) + data[18:], "no shared object for"),
        (lambda data: data[:18] + struct.pack("<H", 8) + data[20:], "no shared object for"),
        (lambda data: data[:32] + struct.pack("<Q", (1 << 64) - 8) + data[40:], "cut short"),
        (lambda data: data[:56] + struct.pack("<H", 60_000) + data[58:], "program headers"),
    ],
)
def test_what_is_no_library_is_refused_with_a_reason(compiled, edit, reason):
    ghost = stub_functions(edit(compiled(KERNELS)), KERNELS)
    assert ghost[:3] == (None, (), ())
    assert ghost.reason.startswith("the product cannot be patched: ")
    assert reason in ghost.reason


def test_damaged_products_never_break_the_parser(compiled):
    """Anywhere, in the headers and in the tables that lead to symbols; some stay valid, none raises."""
    products = [compiled(KERNELS), compiled(KERNELS, "-Wl,--hash-style=sysv")]
    chance = random.Random(20)
    patched = 0
    for trial in range(600):
        product = bytearray(products[trial % 2])
        reach = chance.choice([64, 1024, 4096, len(product)])
        for _ in range(chance.choice([1, 1, 2, 8])):
            width = chance.choice([1, 2, 4, 8])
            value = chance.choice([chance.getrandbits(8 * width), (1 << 8 * width) - 1, 0, 1 << 8 * width - 1])
            at = chance.randrange(reach - width)
            product[at : at + width] = value.to_bytes(width, "little")
        if trial % 5 == 0:
            del product[chance.randrange(len(product)) :]
        ghost = stub_functions(bytes(product), KERNELS)
        patched += ghost.product is not None
        assert ghost.reason if ghost.product is None else (len(ghost.product) == len(product) and ghost.stubbed)
    assert 0 < patched < 600


def test_a_source_that_exhausts_the_parser_is_given_up(compiled):
    """Nested so deep that reading it in this process would raise."""
    chain = "".join(f"#define A{i} A{i + 1}\n" for i in range(3000))
    ghost = stub_functions(compiled(KERNELS), f"{chain}#if 0\nA0\n#endif\n{KERNELS}")
    assert ghost.product is None
    assert ghost.kept == ("count", "fill")
    assert ghost.reason == "the source's declarations could not be read within limits"
