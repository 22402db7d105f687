"""Exported files at work, with kernelwright out of reach. A script: FOLDER is its one argument.

Prints one JSON object: the name of each case, and "ok" or what went wrong.
"""

import copy
import importlib.abc
import io
import json
import pickle
import sys
import traceback
import warnings


class NoKernelwright(importlib.abc.MetaPathFinder):
    """Fails every import of the package that wrote the files."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "kernelwright":
            raise ImportError("an exported file must not need kernelwright")


sys.meta_path.insert(0, NoKernelwright())
sys.path.insert(0, sys.argv[1])
warnings.simplefilter("error")

import exported_extension  # noqa: E402
import exported_folded  # noqa: E402
import exported_linear  # noqa: E402
import exported_norm  # noqa: E402
import exported_sequence  # noqa: E402
import exported_softmax  # noqa: E402
import exported_triton  # noqa: E402
import torch  # noqa: E402

CASES = []


def case(function):
    CASES.append(function)
    return function


def reference(module, *args):
    return module.EXPORT.reference.Model(*args).eval()


def made(module):
    return module.Model(*module.get_init_inputs()).eval()


def falls_back(model, words, *inputs, **named):
    """The kernel stays out, for a reason that says so, and the result is exactly the reference's."""
    active, reason = model.kernel_active(*inputs, **named)
    assert not active
    assert words in reason, reason
    actual, expected = model(*inputs, **named), model.dropin_reference.forward(model, *inputs, **named)
    assert torch.equal(actual, expected)


@case
def each_kernel_runs_and_matches_the_reference():
    for module in (exported_softmax, exported_linear, exported_norm, exported_folded):
        model = made(module)
        inputs = module.get_inputs()
        with torch.no_grad():
            assert model.kernel_active(*inputs) == (True, "the call was checked")
            actual = model(*inputs)
            expected = module.EXPORT.reference.Model.forward(model, *inputs)
        assert not torch.equal(actual, torch.zeros_like(actual))
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-6)


@case
def an_extension_is_built_with_the_options_of_the_judge():
    model = made(exported_extension)
    for rows, columns in ((16, 100), (3, 7)):
        x = torch.randn(rows, columns)
        assert model.kernel_active(x) == (True, "the call was checked")
        with torch.no_grad():
            torch.testing.assert_close(model(x), torch.softmax(x, -1))


@case
def the_kernel_and_not_the_reference_is_what_runs():
    model = made(exported_linear)
    model.kernel_active(*exported_linear.get_inputs())

    def unreachable(*args):
        raise AssertionError("the reference ran")

    original, exported_linear.Model.dropin_reference.forward = model.dropin_reference.forward, unreachable
    try:
        with torch.inference_mode():
            model(*exported_linear.get_inputs())
    finally:
        exported_linear.Model.dropin_reference.forward = original


@case
def it_is_the_reference_with_its_state_dict():
    torch.manual_seed(1)
    original, model = reference(exported_linear, 12, 20), exported_linear.LinearGeluKernel(12, 20).eval()
    assert isinstance(model, exported_linear.EXPORT.reference.Model)
    assert list(model.state_dict()) == list(original.state_dict())
    assert len(list(model.parameters())) == 2
    x = torch.randn(8, 12)
    with torch.no_grad():
        model(x)
        model.load_state_dict(original.state_dict())
        torch.testing.assert_close(model(x), original(x))
        model.load_state_dict(reference(exported_linear, 12, 20).state_dict(), assign=True)
        assert not torch.allclose(model(x), original(x))
        torch.testing.assert_close(model(x), model.dropin_reference.forward(model, x))
        assert model.kernel_active(x)[0]


@case
def a_live_module_lends_its_own_parameters():
    original = reference(exported_norm, 33)
    with torch.no_grad():
        original.norm.weight.uniform_(0.5, 1.5)
        model = exported_norm.from_reference(original)
        assert model.norm.weight is original.norm.weight
        assert not model.training
        x = torch.randn(6, 33)
        torch.testing.assert_close(model(x), original(x))
        original.norm.bias.add_(1)
        torch.testing.assert_close(model(x), original(x))
        assert model.kernel_active(x)[0]


@case
def a_module_with_other_names_is_taken_by_map_or_order():
    other = torch.nn.LayerNorm(33).eval()
    assert exported_norm.from_reference(other).norm.weight is other.weight
    names = {"norm.weight": "weight", "norm.bias": "bias"}
    assert exported_norm.from_reference(other, names=names).norm.bias is other.bias
    message = ""
    try:
        exported_norm.from_reference(torch.nn.LayerNorm(32))
    except ValueError as error:
        message = str(error)
    assert "weight[32]" in message


@case
def knobs_are_part_of_the_file():
    model = made(exported_norm)
    with torch.no_grad():
        model(*exported_norm.get_inputs())
    assert exported_norm.EXPORT.kernel().lib.lanes() == 4
    assert exported_norm.EXPORT.kernel().FAST is True
    assert float(torch.tensor([1.1754943508222875e-38]) / 2) != 0.0


@case
def all_declared_variants_are_admitted():
    model = made(exported_softmax)
    for shape in ((16, 100), (3, 7), (16, 100)):
        x = torch.randn(shape)
        assert model.kernel_active(x)[0], shape
        torch.testing.assert_close(model(x), torch.softmax(x, -1))


@case
def another_shape_falls_back():
    falls_back(made(exported_softmax), "input 0 has shape (4, 4) (checked: (16, 100); (3, 7))", torch.randn(4, 4))


@case
def another_dtype_falls_back():
    falls_back(made(exported_softmax), "torch.float64", torch.randn(3, 7, dtype=torch.float64))


@case
def another_layout_falls_back():
    falls_back(made(exported_softmax), "strides", torch.randn(7, 3).t())


@case
def another_device_falls_back():
    model = made(exported_softmax)
    active, reason = model.kernel_active(torch.empty(3, 7, device="meta"))
    assert (active, reason) == (False, "input 0 is on meta, checked on cpu")
    assert model(torch.empty(3, 7, device="meta")).device.type == "meta"


@case
def a_triton_kernel_waits_for_a_cuda_tensor():
    falls_back(made(exported_triton), "input 0 is on cpu, checked on cuda", torch.randn(4, 8))


@case
def wanted_gradients_fall_back():
    model = made(exported_linear)
    falls_back(model, "gradients", torch.randn(8, 12))
    model(torch.randn(8, 12)).sum().backward()
    assert model.linear.weight.grad is not None
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    assert model.kernel_active(torch.randn(8, 12))[0]
    falls_back(made(exported_softmax), "gradients", torch.randn(3, 7, requires_grad=True))


@case
def training_mode_falls_back():
    with torch.no_grad():
        falls_back(made(exported_linear).train(), "training mode", torch.randn(8, 12))


@case
def other_constructor_arguments_fall_back():
    with torch.no_grad():
        falls_back(exported_softmax.Model(dim=0).eval(), "constructed with arguments", torch.randn(3, 7))
        falls_back(exported_linear.Model(12, 21).eval(), "constructed with arguments", torch.randn(8, 12))
        assert exported_linear.Model(width=12, out=20).eval().kernel_active(torch.randn(8, 12))[0]
        assert exported_softmax.Model(-1).eval().kernel_active(torch.randn(3, 7))[0]


@case
def other_arguments_of_forward_fall_back():
    model, x = made(exported_linear), torch.randn(8, 12)
    with torch.no_grad():
        falls_back(model, "2 inputs were given", x, torch.randn(8, 20))
        falls_back(model, "2 inputs were given", x, residual=torch.randn(8, 20))
        assert model.kernel_active(x=x)[0]
        torch.testing.assert_close(model(x=x), model.dropin_reference.forward(model, x))
    try:
        model.eval()(x, nonsense=1)
    except TypeError:
        return
    raise AssertionError("an unknown argument was taken")


@case
def changed_parameters_fall_back():
    x = torch.randn(8, 12)
    with torch.no_grad():
        model = made(exported_linear)
        model(x)
        falls_back(model.double(), "torch.float64", x.double())
        model.float()
        assert model.kernel_active(x)[0]
        model.linear.weight = torch.nn.Parameter(torch.randn(12, 20).t())
        falls_back(model, "linear.weight", x)


@case
def a_replaced_submodule_is_noticed():
    x = torch.randn(8, 12)
    with torch.no_grad():
        model = made(exported_linear)
        model(x)
        model.linear = torch.nn.Linear(12, 20)
        assert model.kernel_active(x)[0]
        torch.testing.assert_close(model(x), model.dropin_reference.forward(model, x))


@case
def hooks_on_submodules_fall_back():
    model, seen = made(exported_linear), []
    handle = model.linear.register_forward_hook(lambda *args: seen.append(1))
    with torch.no_grad():
        falls_back(model, "hooks", torch.randn(8, 12))
        assert seen
        handle.remove()
        assert model.kernel_active(torch.randn(8, 12))[0]


@case
def autocast_and_tensor_subclasses_fall_back():
    class Marked(torch.Tensor):
        pass

    model, x = made(exported_softmax), torch.randn(3, 7)
    with torch.autocast("cpu"):
        falls_back(model, "autocast", x)
    active, reason = model.kernel_active(x.as_subclass(Marked))
    assert not active
    assert "plain tensor" in reason


@case
def folded_weights_are_folded_again_when_they_change():
    model = made(exported_folded)
    x = torch.randn(6, 33)
    with torch.no_grad():
        model(x)
        model.norm.weight.mul_(3)
        assert model.kernel_active(x)[0]
        torch.testing.assert_close(model(x), model.dropin_reference.forward(model, x), rtol=1e-5, atol=1e-5)
        model.norm.bias = torch.nn.Parameter(torch.randn(33))
        torch.testing.assert_close(model(x), model.dropin_reference.forward(model, x), rtol=1e-5, atol=1e-5)


@case
def copies_and_pickles_stand_on_their_own():
    model, x = made(exported_linear), torch.randn(8, 12)
    with torch.no_grad():
        model(x)
        other = copy.deepcopy(model)
        other.linear.weight.zero_()
        assert not torch.allclose(model(x), other(x))
        torch.testing.assert_close(other(x), other.dropin_reference.forward(other, x))
        again = pickle.loads(pickle.dumps(model))
        torch.testing.assert_close(again(x), model(x))
        assert again.kernel_active(x)[0]
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)


@case
def random_numbers_are_left_alone():
    model, x = made(exported_linear), torch.randn(8, 12)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with torch.no_grad():
        model(x)
    assert torch.equal(torch.rand(3), expected)


@case
def checked_layouts_and_values_are_what_counts():
    model = made(exported_sequence)
    x, ys = torch.randn(2, 2).t(), torch.arange(3)
    assert model.kernel_active(x, ys, 3)[0]
    first, second = model(x, ys, 3)
    assert torch.equal(first, 2 * x)
    assert torch.equal(second, 3 * ys)
    for changed, words in (((x.contiguous(), ys, 3), "strides"), ((x, ys, 4), "checked with 3"), ((x, ys, 3.0), "3.0")):
        active, reason = model.kernel_active(*changed)
        assert not active
        assert words in reason, reason
    assert torch.equal(model(x, ys, 4)[1], 4 * ys)


def main():
    results = {}
    for function in CASES:
        torch.manual_seed(0)
        try:
            function()
            results[function.__name__] = "ok"
        except Exception:  # noqa: BLE001 - reported by name to the test that reads it
            results[function.__name__] = traceback.format_exc()[-1500:]
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
