"""Problems as other people write them: their constructors are carried over, and what they compute is right."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelwright.codegen import CodegenError
from kernelwright.codegen._capture import capture_entry
from kernelwright.codegen._constructor import constructor

STYLES = Path(__file__).parents[1] / "styles"
NAMES = sorted(path.stem for path in STYLES.glob("*.py"))


@pytest.mark.matrix(one_in=4)
@pytest.mark.parametrize("name", NAMES)
def test_code_as_others_write_it_gets_a_right_kernel(build_source, name):
    built = build_source((STYLES / f"{name}.py").read_text(encoding="utf-8"))
    reference, candidate, _ = built.models({})
    assert list(candidate.state_dict()) == list(reference.state_dict())
    assert built.generated.has_kernel
    built.check()


def carried(name: str) -> str:
    reply = capture_entry({"source": (STYLES / f"{name}.py").read_text(encoding="utf-8"), "mode": "eval"})
    assert reply["ok"], reply
    return reply["carry"]


def test_helpers_keep_their_forward_only_where_the_constructor_calls_it(build_source):
    assert carried("sized_by_a_dry_run") == "whole"
    assert carried("config_and_optional_mask") == "needed"
    text = (STYLES / "config_and_optional_mask.py").read_text(encoding="utf-8")
    made = constructor(text)
    assert "def forward" not in made.helpers
    assert "def head_dim" in made.helpers
    assert "def mlp" in made.helpers
    assert made.imports[0] == "from __future__ import annotations"


def test_parameters_of_forward_keep_their_defaults(build_source):
    built = build_source((STYLES / "config_and_optional_mask.py").read_text(encoding="utf-8"))
    assert "def forward(self, x, mask=None, scale=1.0):" in built.generated.source


def test_what_only_makes_inputs_or_runs_the_file_is_left_out():
    text = (STYLES / "old_super_and_branches.py").read_text(encoding="utf-8")
    for carry in ("needed", "whole"):
        made = constructor(text, carry)
        whole = "\n".join((*made.imports, made.helpers, made.init))
        assert "get_inputs" not in whole
        assert "__main__" not in whole
        assert "super(ModelNew, self)" in whole


def test_statements_that_fill_a_table_go_with_it():
    text = (STYLES / "registry_and_table.py").read_text(encoding="utf-8")
    made = constructor(text)
    assert "CFG['stages'].append('wide')" in made.helpers
    assert "CFG['eps'] = 0.001" in made.helpers


def test_a_constructor_that_makes_something_else_each_time_is_refused():
    text = (STYLES / "low_precision_sequential.py").read_text(encoding="utf-8")
    grown = (
        "        torch.styles_built = getattr(torch, 'styles_built', 2) + 1\n        dims = [torch.styles_built] * 2\n"
    )
    reply = capture_entry({"source": text.replace("        self.net =", f"{grown}        self.net ="), "mode": "eval"})
    assert not reply["ok"]
    assert "the constructor cannot be carried over: it makes other parameters" in reply["reason"]


def test_a_file_without_a_model_is_refused():
    with pytest.raises(CodegenError, match="no class Model"):
        constructor("import torch\nModel = torch.nn.Identity\n")
