"""torch's ``load_inline`` built by our builder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch.utils.cpp_extension as extension

from kernelwright.inline import BuildError, BuildRequest, compile_command, patch_load_inline
from kernelwright.inline.requests import extension_parts

SOURCE = "torch::Tensor twice(torch::Tensor x) { return x * 2; }"
PLAIN = """
#include <Python.h>
static PyObject* answer(PyObject*, PyObject*) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "plain_extension", "", -1, methods, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_plain_extension() { return PyModule_Create(&definition); }
"""


@pytest.fixture(autouse=True)
def unpatched(monkeypatch):
    monkeypatch.setattr(extension, "load_inline", extension.load_inline)


def test_an_extension_is_built_by_our_command_and_imported(tmp_path):
    """Without torch's headers, which take half a minute; the corpus of honest candidates has one with them."""
    requests = []

    def provider(request):
        requests.append(request)
        source, out = tmp_path / "main.cpp", tmp_path / "main.so"
        source.write_text(request.source)
        subprocess.run(compile_command(request, str(out), str(source)), check=True)
        return str(out)

    patch_load_inline(provider)
    module = extension.load_inline("plain_extension", PLAIN, extra_cflags=["-O1"], no_implicit_headers=True)
    assert module.__name__ == "plain_extension"
    assert module.answer() == 42
    assert requests[0].language == "torch_extension"
    assert requests[0].flags == ("-O1",)


def test_the_source_is_what_torch_would_compile():
    requests = []
    patch_load_inline(lambda request: requests.append(request) or "/nowhere.so")
    with pytest.raises(ImportError):
        extension.load_inline("ext", [SOURCE, "int other;"], functions={"twice": "doubles"})
    (request,) = requests
    assert request.source.startswith("#include <torch/extension.h>\n" + SOURCE)
    assert 'm.def("twice", torch::wrap_pybind_function(twice), "doubles");' in request.source
    assert request.name == "ext"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sycl_sources": "void k() {}"}, "SYCL"),
        ({"cuda_sources": "__global__ void k() {}", "extra_cuda_cflags": ["-I/etc"]}, "not allowed"),
        ({"extra_include_paths": ["/etc"]}, "extra_include_paths"),
        ({"extra_cflags": ["-I/etc"]}, "not allowed"),
        ({"extra_ldflags": ["-Wl,-rpath,/x"]}, "not allowed"),
        ({"is_python_module": False}, "is_python_module"),
    ],
)
def test_what_is_not_supported_is_refused(arguments, words):
    patch_load_inline(lambda request: pytest.fail("asked to build"))
    with pytest.raises(BuildError, match=words):
        extension.load_inline("ext", SOURCE, functions="twice", **arguments)


def test_cuda_sources_are_one_request_in_two_parts():
    requests = []

    def provide(request):
        requests.append(request)
        raise BuildError("not today")

    patch_load_inline(provide)
    with pytest.raises(BuildError, match="not today"):
        extension.load_inline(
            "ext",
            "int twice(int);",
            cuda_sources=["__global__ void k() {}", "int twice(int x) { return 2 * x; }"],
            functions=["twice"],
            extra_cflags=["-O3", "-DN=4"],
            extra_cuda_cflags=["-use_fast_math"],
        )
    (request,) = requests
    assert (request.language, request.name, request.flags) == (
        "torch_cuda_extension",
        "ext",
        ("-use_fast_math", "-DN=4"),
    )
    cpp_part, cuda_part = extension_parts(request.source)
    assert 'm.def("twice"' in cpp_part
    assert "__global__ void k() {}" in cuda_part


def test_cuda_sources_outside_of_the_referee_are_left_to_torch():
    patch_load_inline(None)
    with pytest.raises(BuildError, match="torch's own load_inline"):
        extension.load_inline("ext", "int f();", cuda_sources="int f() { return 1; }", functions=["f"])


def test_the_command_needs_no_torch_in_the_process_and_no_odd_name():
    request = BuildRequest("torch_extension", SOURCE, (), "bad-name")
    with pytest.raises(BuildError, match="identifier"):
        compile_command(request, "/out", "/in")
    check = (
        "import sys; from kernelwright.inline import BuildRequest, compile_command\n"
        "print(compile_command(BuildRequest('torch_extension', '', (), 'ext'), '/out', '/in'))\n"
        "assert 'torch' not in sys.modules"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=root)
    assert "-DTORCH_EXTENSION_NAME=ext" in done.stdout
    assert "torch/include" in done.stdout
