"""Similarity of references: blind to names, sizes and order of imports; sharp about operators."""

from __future__ import annotations

import ast
import builtins
import sys
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelwright.datasets import load_suite
from kernelwright.rl._similarity import similarity

sys.path.insert(0, str(Path(__file__).parent))

from export_world import reference

THRESHOLD = 0.9
# One operator in other sizes or dtypes, along another dimension, in training, or with its gradients.
SAME_OPERATOR = [
    {"square_matmul", "batched_matmul", "tall_skinny_matmul", "bfloat16_matmul"},
    {"softmax", "softmax_middle_dim"},
    {"layer_norm", "layer_norm_backward"},
    {"batch_norm", "batch_norm_train"},
    {"cross_entropy", "cross_entropy_backward"},
    {"gemm_bias_gelu", "linear_gelu_backward"},
]

PLANTED = """from torch import nn as layers
import torch.nn.functional as functional
import torch

BATCH, FEATURES = 77, 3


class Model(layers.Module):
    '''Somebody else's words.'''

    def __init__(self, features: int) -> None:
        super(Model, self).__init__()
        self.fc = layers.Linear(features, features)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        '''What it does.'''
        y = self.fc(tokens)
        return functional.relu(y) * 5.0


def get_inputs():
    return [torch.rand(BATCH, FEATURES)]


def get_init_inputs():
    return [FEATURES]
"""


class Renamed(ast.NodeTransformer):
    """Names of variables and parameters, and numbers, as a seed makes them."""

    def __init__(self, tree: ast.AST, seed: int) -> None:
        imported = {
            alias.asname or alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        self._kept = imported | {"self", "super", "range", "len", "Model"} | set(dir(builtins))
        self._seed = seed

    def _new(self, name: str) -> str:
        return name if name in self._kept else f"n{self._seed}_{len(name)}_{name[::-1]}"

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Name(self._new(node.id), node.ctx), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.copy_location(ast.arg(self._new(node.arg), None), node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        return ast.copy_location(ast.Constant(node.value + self._seed), node) if number else node


@given(st.sampled_from(list(load_suite())), st.integers(1, 10**6))
@settings(max_examples=60, deadline=None)
def test_names_and_sizes_change_nothing(problem, seed):
    tree = ast.parse(problem.source)
    changed = ast.unparse(ast.fix_missing_locations(Renamed(tree, seed).visit(tree)))
    assert similarity(problem.source, changed) == 1.0


def test_a_planted_copy_is_found_and_another_operator_is_not():
    assert similarity(reference("F.relu"), PLANTED) == 1.0
    assert similarity(reference("F.gelu"), PLANTED) < THRESHOLD
    assert similarity(reference("torch.tanh"), reference("torch.sigmoid")) < THRESHOLD


@pytest.mark.parametrize(
    "written",
    [
        PLANTED.replace("functional.relu(y)", "y.relu()"),
        PLANTED.replace("functional.relu(y)", "torch.nn.functional.relu(y)"),
        PLANTED.replace("functional.relu(y)", "self.act(y)").replace(
            "        self.fc", "        self.act = layers.ReLU()\n        self.fc"
        ),
    ],
    ids=["method", "whole path", "module"],
)
def test_modules_functions_and_methods_are_one(written):
    assert similarity(PLANTED, written) == 1.0


def test_what_is_connected_in_another_way_is_another_problem():
    once, twice = "F.relu(self.project(x))", "self.project(F.relu(x))"
    first = reference().replace("self.project(x)", once)
    second = reference().replace("self.project(x)", twice)
    assert similarity(first, second) < 1.0


def test_distinct_problems_of_the_suite_are_below_the_threshold():
    problems = list(load_suite())
    for one, other in combinations(problems, 2):
        if not any({one.name, other.name} <= names for names in SAME_OPERATOR):
            assert similarity(one.source, other.source) < 0.6, (one.name, other.name)


def test_it_is_symmetric_and_every_problem_is_its_own_twin():
    problems = list(load_suite())[::9]
    for one, other in combinations(problems, 2):
        assert similarity(one.source, other.source) == similarity(other.source, one.source)
    assert all(similarity(problem.source, problem.source) == 1.0 for problem in problems)


def test_what_does_not_parse_is_like_its_own_text_alone():
    assert similarity("class Model(:", "class  Model(:") == 1.0
    assert similarity("class Model(:", "def (") == 0.0
    assert similarity("class Model(:", reference()) == 0.0
    assert similarity("", "x = 1") == 0.0
