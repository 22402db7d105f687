"""Exported files: their text, and their behaviour where nothing of kernelwright can be imported."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kernelwright.errors import UsageError
from kernelwright.export import export_module
from kernelwright.records import Candidate, Interval, Problem, Speedup, Stage, Status, Timing, Verdict

SCRIPT = Path(__file__).with_name("export_cases.py")
CASES = re.findall(r"^@case\ndef (\w+)\(", SCRIPT.read_text(), flags=re.M)
PROBLEM = Problem(
    id='file/o"dd\n"""name',
    suite="file",
    level=1,
    name="3 odd-name",
    source="class Model: pass\nQUOTES = '''a''' + \"\"\"b\"\"\" + '\\\\'\n",
)


def run(*arguments, **environment):
    """A Python that knows neither this folder nor PYTHONPATH."""
    variables = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-I", *arguments], capture_output=True, text=True, env=variables)


def candidate(source="class ModelNew: pass\n", **more):
    return Candidate(problem_id=PROBLEM.id, source=source, **{"backend": "cpp", **more})


def constants(text):
    """The module-level string constants of an exported file."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found[node.targets[0].id] = node.value.value
    return found


@pytest.fixture(scope="module")
def results(exported_files, tmp_path_factory):
    done = run(str(SCRIPT), str(exported_files), XDG_CACHE_HOME=str(tmp_path_factory.mktemp("cache")))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_exported_file(results, name):
    assert results[name] == "ok", results[name]


def test_every_case_ran(results):
    assert sorted(results) == sorted(CASES)


def test_without_a_compiler_the_reference_runs_and_one_warning_says_so(exported_files, tmp_path):
    program = f"""
import sys, warnings
sys.path.insert(0, {str(exported_files)!r})
import exported_softmax as e, torch
x = torch.randn(3, 7)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    models = [e.Model().eval() for _ in range(2)]
    assert all(torch.equal(model(x), torch.softmax(x, -1)) for model in models for _ in range(3))
assert len(caught) == 1, [str(w.message) for w in caught]
assert "no C++ compiler" in str(caught[0].message) and "SoftmaxKernel" in str(caught[0].message)
active, reason = models[0].kernel_active(x)
assert not active and "apt install g++" in reason, reason
print("done")
"""
    done = run("-c", program, PATH="/nonexistent", XDG_CACHE_HOME=str(tmp_path))
    assert done.stdout.strip() == "done", done.stderr


def test_a_kernel_built_for_another_processor_is_not_taken(exported_files, tmp_path):
    program = f"""
import sys
sys.path.insert(0, {str(exported_files)!r})
import exported_softmax as e, torch
if sys.argv[1] == "other":
    assert callable(e.processor)
    e.processor = lambda: "flags : of another processor"
assert e.Model().eval().kernel_active(torch.randn(3, 7))[0]
"""
    for which in ("own", "other", "own"):
        done = run("-c", program, which, XDG_CACHE_HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("kernelwright/inline/*/kernel.so"))) == 2


def test_the_file_compares_itself_when_run(exported_files, tmp_path):
    done = run(str(exported_files / "exported_linear.py"), XDG_CACHE_HOME=str(tmp_path))
    assert "kernel active: True" in done.stdout, done.stderr
    assert "largest difference:" in done.stdout


def test_the_header_tells_what_was_measured():
    timing = Timing(
        latency_ms=Interval(median=1.25, low=1.2, high=1.3),
        processes=5,
        pairs=60,
        threads=1,
        confirmed=True,
        noise_bound=0.02,
        speedup={"eager": Speedup(median=1.5, low=1.4, high=1.61, faster=True)},
    )
    verdict = Verdict(
        candidate=candidate().sha256,
        problem=PROBLEM.id,
        backend="cpp",
        stage=Stage.CONFIRMED,
        status=Status.PASSED,
        timing=timing,
        own_kernel_share=0.02,
        own_kernel_label="library",
        environment="0123456789abcdef",
    )
    text = export_module(PROBLEM, candidate(), verdict=verdict)
    header = ast.get_docstring(ast.parse(text))
    for part in (
        candidate().sha256,
        "1.500x [1.400, 1.610]",
        "eager",
        "0123456789abcdef",
        "PASSED, stage confirmed",
        "library, 2%",
    ):
        assert part in header
    assert f"kernels verify {candidate().sha256[:12]}" in header
    assert "OddNameKernel" in header


def test_sources_survive_any_content_exactly():
    sources = ["a = 1\n", "'''\n", "'''" + '"""', "ends with quote'", "tab\tand \\ and \r\n", "é\u2028\x00 end", "\\"]
    for source in sources:
        problem = PROBLEM.model_copy(update={"source": source})
        assert constants(export_module(problem, candidate()))["REFERENCE_SOURCE"] == source


def test_the_file_mentions_no_import_of_kernelwright(exported_files):
    for path in exported_files.glob("*.py"):
        assert not re.search(r"(import|from) +kernelwright", path.read_text())


def test_names_of_the_embedded_modules_do_not_collide(exported_files):
    tree = ast.parse((exported_files / "exported_softmax.py").read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    names += [t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)]
    assert len(names) == len(set(names))


def test_the_variants_may_be_given():
    text = export_module(PROBLEM, candidate(), variants=[{"N": 3}])
    assert "{'N': 3}" in text


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("from kernelwright.inline import cpp as c, Library", "c = _kernelwright.cpp; Library = _kernelwright.Library"),
        ("from kernelwright import inline", "inline = _kernelwright"),
        ("import kernelwright.inline as i, math", "i = _kernelwright; import math"),
        ("from kernelwright.inline import (\n    cpp,\n)", "cpp = _kernelwright.cpp"),
    ],
)
def test_imports_of_inline_are_bound_to_the_embedded_runtime(statement, expected):
    text = export_module(PROBLEM, candidate(f"x = 1; {statement}; y = 2\ndef f():\n    pass\n"))
    assert constants(text)["KERNEL_SOURCE"] == f"x = 1; {expected}; y = 2\ndef f():\n    pass\n"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"source": "from kernelwright.codegen import generate\n"}, "kernelwright.codegen"),
        ({"source": "import kernelwright.store\n"}, "kernelwright.store"),
        ({"source": "def broken(:\n"}, "cannot be exported"),
        ({"knobs": {"BLOCK": 3}}, "BLOCK"),
        ({"backend": "cuda"}, "CUDA"),
    ],
)
def test_what_cannot_be_exported_is_a_usage_error(change, words):
    with pytest.raises(UsageError, match=words):
        export_module(PROBLEM, candidate(**change))


def test_exporting_imports_no_torch():
    program = (
        "import sys; import kernelwright.export\n"
        "from kernelwright.records import Candidate, Problem\n"
        "p = Problem(id='a', suite='a', level=1, name='a', source='')\n"
        "kernelwright.export.export_module(p, Candidate(problem_id='a', source='', backend='cpp'))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=SCRIPT.parents[2])
    assert done.stdout.strip() == "False", done.stderr


NAMES_A_DEVICE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super(Model, self).__init__()
        self.shift = torch.ones(4).cuda()

    def forward(self, x):
        return x + self.shift.to("cuda")


def get_inputs():
    return [torch.randn(8, 4, device="cuda")]


def get_init_inputs():
    return []
"""
ADDS = """import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x + 1
"""


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="there is a GPU, and the file may well name it")
def test_a_file_whose_reference_names_a_device_works_without_one(tmp_path):
    problem = Problem(id="file/named", suite="file", level=1, name="named", source=NAMES_A_DEVICE)
    path = tmp_path / "named.py"
    path.write_text(export_module(problem, candidate(ADDS)))
    done = run(str(path))
    assert done.returncode == 0, done.stderr
    assert "largest difference: 0.0" in done.stdout
    assert "pretended CUDA device" not in export_module(PROBLEM, candidate()), "other files do without it"
