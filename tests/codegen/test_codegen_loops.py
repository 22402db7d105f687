"""Loops over time: steps that the capture wrote out become one loop again, for inputs of all lengths."""

from __future__ import annotations

import json
import textwrap

import pytest
import torch
from conftest import problem
from test_codegen_triton import run

from kernelwright.codegen import Graph
from kernelwright.codegen._capture import capture_entry

LENGTHS = [{"T": 9}, {"T": 4}, {"T": 3}]
CASES = {
    "running sum": (
        """
        # x
        s, out = x[0] * 0, []
        for row in x:
            s = torch.tanh(s + row)
            out.append(s)
        return torch.stack(out)
        """,
        "torch.randn(T, 5, 6)",
    ),
    "along another dim": (
        """
        # x
        s, out = x[:, 0] * 0, []
        for t in range(x.shape[1]):
            s = s * 0.5 + x[:, t].exp()
            out.append(s * 2)
        return torch.stack(out, 1) + x
        """,
        "torch.randn(5, T, 6)",
    ),
    "backwards": (
        """
        # x
        s, out = x[0] * 0, []
        for t in range(x.shape[0]):
            s = torch.sin(s) + x[x.shape[0] - 1 - t]
            out.append(s)
        return torch.stack(out, -1)
        """,
        "torch.randn(T, 5, 6)",
    ),
    "two states": (
        """
        # x h c
        for t in range(x.shape[0]):
            c = torch.sigmoid(x[t] + h) * c + 0.1
            h = torch.tanh(c) + h
        return h, c
        """,
        "torch.randn(T, 7), torch.randn(7), torch.randn(7)",
    ),
    "products": (
        """
        # x h
        out = []
        for t in range(x.shape[0]):
            h = torch.tanh(self.l(h) + x[t])
            out.append(h)
        return torch.stack(out), h
        """,
        "torch.randn(T, 5, 6), torch.randn(5, 6)",
    ),
    "rows are reduced": (
        """
        # x h
        out = []
        for t in range(x.shape[0]):
            h = torch.softmax(h + x[t], -1)
            out.append((h * x[t]).sum(-1))
        return torch.stack(out)
        """,
        "torch.randn(T, 5, 6), torch.randn(5, 6)",
    ),
    "begun with a smaller state": (
        """
        # x
        s = x[0, :1]
        for t in range(x.shape[0]):
            s = s * x[t] + torch.sin(x[t])
        return s
        """,
        "torch.randn(T, 5, 6)",
    ),
    "begun by hand": (
        """
        # x g
        d = torch.exp(-g.abs())[..., None] * x
        s = d[0]
        out = [s.sum(-1)]
        for t in range(1, x.shape[0]):
            s = d[t] + s * g[t][..., None]
            out.append(s.sum(-1))
        return torch.stack(out)
        """,
        "torch.randn(T, 5, 6), torch.randn(T, 5)",
    ),
    "results are views": (
        """
        # x h
        turned, cut, wide, flat, plain = [], [], [], [], []
        for t in range(x.shape[0]):
            h = torch.tanh(h + x[t])
            turned.append(h.t())
            cut.append(h[:, 1:4])
            wide.append(h.sum(-1, keepdim=True).expand(5, 3))
            flat.append(h.view(-1))
            plain.append(h)
        return tuple(torch.stack(one) for one in (turned, cut, wide, flat, plain))
        """,
        "torch.randn(T, 5, 6), torch.randn(5, 6)",
    ),
    "states are views": (
        """
        # x h c
        out = []
        for t in range(x.shape[0]):
            gates = F.linear(torch.cat([x[t], h], -1), self.l.weight.repeat(2, 2))
            h, o = torch.tanh(gates).chunk(2, -1)
            c = torch.sin(c.t() @ self.l.weight + x[t, :1]).t()
            out.append(o)
        return torch.stack(out), h, c
        """,
        "torch.randn(T, 5, 6), torch.randn(5, 6), torch.randn(6, 6)",
    ),
    "the same in each step": (
        """
        # x h
        rows, out, gates = x.unbind(0), [], []
        for row in rows:
            g = torch.sigmoid(self.l.bias) * 2
            h = torch.tanh(h * g + row)
            out.append(h)
            gates.append(g)
        return torch.stack(out), torch.stack(gates, 1), g, rows[1], out[0], out[-1] + 1
        """,
        "torch.randn(T, 5, 6), torch.randn(5, 6)",
    ),
    "the slice before is a state": (
        """
        # x h
        kept, out = x[0] * 0, []
        for t in range(x.shape[0]):
            h = torch.tanh(h + x[t] - kept)
            kept = x[t]
            out.append(h)
        return torch.stack(out), kept
        """,
        "torch.randn(T, 5, 6), torch.randn(5, 6)",
    ),
    "filled slice by slice": (
        """
        # x h
        out = torch.zeros_like(x)
        for t in range(x.shape[1]):
            h = torch.tanh(h + x[:, t])
            out[:, t] = h
        y = x.clone()
        for t in range(1, x.shape[1]):
            y[:, t] = torch.sin(y[:, t - 1]) + y[:, t]
        return out, y
        """,
        "torch.randn(5, T, 6), torch.randn(5, 6)",
    ),
    "joined": (
        """
        # x h c
        out, rows = [], [c]
        for t in range(x.shape[1]):
            h = torch.tanh(h + x[:, t : t + 1])
            out.append(h)
            rows.append(h[:, 0])
        return torch.cat(out, 1), torch.cat(rows)
        """,
        "torch.randn(5, T, 6), torch.randn(5, 1, 6), torch.randn(2, 6)",
    ),
    "both ways": (
        """
        # x
        h, c, there, back = x[0] * 0, x[0] * 0, [], []
        for row in x.split(1):
            h = torch.tanh(h + row[0])
            there.append(h)
        for t in range(1, x.shape[0] + 1):
            c = torch.tanh(c + x[-t])
            back.insert(0, c)
        y, c = torch.cat([torch.stack(there), torch.stack(back)], -1), c @ self.l.weight.repeat(1, 2)
        for row in y:
            c = torch.sin(c + row)
        return c
        """,
        "torch.randn(T, 5, 6)",
    ),
}
LOOPS = {"filled slice by slice": 2, "both ways": 3}
INSIDE = {"running sum", "along another dim", "backwards", "two states", "rows are reduced", "begun by hand"}


def source_of(name):
    forward, inputs = CASES[name]
    init = "self.l = nn.Linear(6, 6)" if "self.l" in forward else ""
    return problem(textwrap.dedent(forward).strip(), inputs, init=init, constants="T = 9\n")


@pytest.mark.matrix(one_in=3)
@pytest.mark.parametrize("name", CASES)
def test_one_candidate_is_right_at_all_lengths(build_source, name):
    built = build_source(source_of(name), {}, LENGTHS)
    assert [step["kind"] for step in built.generated.report].count("repeat") == LOOPS.get(name, 1)
    for variant in LENGTHS:
        built.check(variant)


@pytest.fixture(scope="module")
def in_triton(taken):
    names = {*taken("name"), "products"} & {*CASES}
    payload = {name: {"source": source_of(name), "variants": LENGTHS} for name in CASES if name in names}
    return run("codegen_triton_loops.py", text=json.dumps(payload))


@pytest.mark.matrix(one_in=3)
@pytest.mark.parametrize("name", CASES)
def test_triton_candidate(in_triton, name):
    assert isinstance(in_triton[name], int), in_triton[name]


@pytest.mark.matrix(one_in=3)
@pytest.mark.parametrize("name", sorted(INSIDE))
def test_a_triton_kernel_runs_all_steps(in_triton, name):
    """As many launches for nine steps as for three: states stay in registers."""
    assert in_triton[name] == 1


def test_a_step_that_needs_a_product_is_launched_each_time(in_triton):
    assert in_triton["products"] >= 9


UNLIKE = {
    "positions that do not move evenly": "s = torch.sin(s) + x[t * t % x.shape[0]]",
    "a state of another size": "s = torch.cat([s, x[t]])",
    "steps that differ": "s = torch.sin(s) if t % 2 else torch.cos(s) * x[t] * (t + 1)",
}


@pytest.mark.parametrize("name", UNLIKE)
def test_other_repetitions_stay_written_out(name):
    forward = f"# x\ns = x[0]\nfor t in range(x.shape[0]):\n    {UNLIKE[name]}\nreturn s"
    source = problem(forward, "torch.randn(T, 5)", constants="T = 9\n")
    reply = capture_entry({"source": source, "variant": LENGTHS[0], "variants": LENGTHS[:1]})
    assert not any("repeat" in node for node in reply["nodes"])
    reply = capture_entry({"source": source, "variant": LENGTHS[0], "variants": LENGTHS})
    assert (reply["ok"], "different graphs" in reply["reason"]) == (False, True)


def test_a_loop_is_read_from_json():
    reply = capture_entry({"source": source_of("two states"), "variant": LENGTHS[0], "variants": LENGTHS})
    loop = next(node.repeat for node in Graph.from_json(json.dumps(reply)).nodes if node.repeat)
    assert loop.steps.values == (9, 4, 3)
    assert (len(loop.carried), len(loop.taken), loop.stacked) == (2, 1, 0)


@pytest.mark.parametrize("change", [{"steps": "x"}, {"taken": [{}]}, {"inputs": [{"target": "a b"}]}, {"carried": 3}])
def test_a_malformed_loop_is_refused(change):
    from kernelwright.codegen import CodegenError

    reply = capture_entry({"source": source_of("two states"), "variant": LENGTHS[0], "variants": LENGTHS})
    next(node for node in reply["nodes"] if "repeat" in node)["repeat"] |= change
    with pytest.raises(CodegenError, match="malformed"):
        Graph.from_json(reply)


def test_gradients_are_not_rolled():
    source = problem(CASES["running sum"][0], "torch.randn(4, 5, 6)")
    reply = capture_entry({"source": source, "variant": {}, "backward": True})
    assert reply["ok"]
    assert not any("repeat" in node for node in reply["nodes"])
    assert torch.is_grad_enabled()
