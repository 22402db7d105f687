"""Writes the text of an exported file: header, runtime, drop-in class, reference and kernel. Nothing is executed."""

from __future__ import annotations

import ast
import datetime
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import InspectLoader
from typing import NamedTuple

from kernelwright.errors import MissingToolError, UsageError
from kernelwright.inline import apply_knobs
from kernelwright.records import Backend, Candidate, DeviceClass, Environment, KnobValue, Problem, Verdict

__all__ = ["export_module"]

_EXTENSIONS = "torch.utils.cpp_extension"
RUNTIME = tuple(f"kernelwright.inline.{name}" for name in ("_declarations", "_library", "toolchain"))


def export_module(
    problem: Problem,
    candidate: Candidate,
    *,
    verdict: Verdict | None = None,
    variants: Sequence[Mapping[str, KnobValue]] | None = None,
    environment: Environment | None = None,
    today: datetime.date | None = None,
) -> str:
    """A Python file with a drop-in ``nn.Module`` that needs torch and, for C++ kernels, g++; not kernelwright.

    The class takes the constructor arguments of the problem's ``Model`` and is a subclass of it, so that its state dict
    is the reference's. Calls that were not checked run the reference.

    Args:
        problem: where the reference comes from.
        candidate: the kernel; its knob settings are written into the text.
        verdict: the measurements for the header.
        variants: the settings of the problem's constants under which the candidate was checked; default: all that the
            problem declares for the device that it was judged on.
        environment: where it was judged; default: on a machine without a GPU.
        today: the date in the header; default: now.

    Raises:
        UsageError: the candidate's text is not Python, uses parts of kernelwright beyond ``inline``, or is CUDA.
    """
    kernel = bound_kernel(candidate)
    declared = problem.meta.variants_for(shapes_of(candidate.backend, environment)) if variants is None else variants
    checked = [dict(variant) for variant in declared]
    name = class_name(problem.name)
    runtime = embedded(runtime_of(problem))
    parts = [
        header(problem, candidate, verdict, name, today or datetime.datetime.now(datetime.UTC).date()),
        runtime,
        section("The reference: what the kernel replaces, and what runs outside its guards"),
        f"REFERENCE_SOURCE = {literal(problem.source)}",
        section("The kernel"),
        f"KERNEL_SOURCE = {literal(kernel)}",
        section("The drop-in"),
        _DROP_IN.format(
            name=name,
            runtime=RUNTIME_NAMES,
            variants="".join(f"        {variant!r},\n" for variant in checked),
            device=kernel_device(candidate.backend),
            training=problem.meta.mode == "train",
            constant_weights=problem.meta.weights == "constants",
        ),
    ]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def runtime_of(problem: Problem) -> list[str]:
    """The modules that a problem's file embeds. If the problem names a CUDA device, a pretended device comes last."""
    device = ["kernelwright.datasets._device"] if "cuda" in problem.source else []
    return [*RUNTIME, "kernelwright.export._extension", "kernelwright.export._dropin", *device]


def bound_kernel(candidate: Candidate) -> str:
    """A candidate's text with its knobs set and its imports bound to the file's own runtime.

    Raises:
        UsageError: the text is not Python, uses parts of kernelwright beyond ``inline``, or is CUDA.
    """
    if candidate.backend == "cuda":
        raise UsageError("a CUDA candidate cannot be exported yet", hint="export a C++ or Triton kernel")
    try:
        return bind_runtime(apply_knobs(candidate.source, candidate.knobs))
    except (SyntaxError, ValueError) as error:
        message = f"the candidate cannot be exported: {error}"
        raise UsageError(message, hint="export a kernel that was judged") from error


def shapes_of(backend: Backend, environment: Environment | None) -> DeviceClass:
    """The device class whose variants the kernels of a backend were checked on."""
    if environment is None:
        return "cpu" if backend == "cpp" else "interpreter"
    return environment.class_for(backend)


def kernel_device(backend: Backend) -> str:
    """torch's name for the device of a backend's tensors."""
    return "cpu" if backend == "cpp" else "cuda"


RUNTIME_NAMES = """RUNTIME = types.SimpleNamespace(
    cpp=cpp, load_inline=load_inline, BuildError=BuildError, ArgumentError=ArgumentError, Library=Library
)"""  # what the text of a kernel finds as ``_kernelwright``
_DROP_IN = '''
{runtime}
EXPORT = Export(
    reference_source=REFERENCE_SOURCE,
    kernel_source=KERNEL_SOURCE,
    variants=[  # the settings of the reference's constants under which the kernel was checked
{variants}    ],
    device="{device}",
    training={training},
    constant_weights={constant_weights},
    runtime=RUNTIME,
)


class {name}(DropIn, EXPORT.reference.Model):
    """Drop-in for the reference's Model: same constructor, same parameters, same results, its own kernel."""

    dropin_exports = (EXPORT,)
    dropin_reference = EXPORT.reference.Model


Model = {name}
from_reference = {name}.from_reference
get_inputs = EXPORT.reference.get_inputs
get_init_inputs = EXPORT.reference.get_init_inputs


def compare():
    """Run kernel and reference on the problem's own inputs and print how far they are apart."""
    model = {name}(*get_init_inputs()).train(EXPORT.training)
    inputs = get_inputs()
    with torch.no_grad():
        print("kernel active: %s (%s)" % model.kernel_active(*inputs))
        expected, actual = EXPORT.reference.Model.forward(model, *inputs), model(*inputs)
    for a, b in zip(*([x] if isinstance(x, torch.Tensor) else x for x in (expected, actual))):
        print("largest difference:", (a.double() - b.double()).abs().max().item())


if __name__ == "__main__":
    compare()
'''


def class_name(problem_name: str) -> str:
    """A class name from a problem's name: ``03_layer_norm`` becomes ``LayerNormKernel``."""
    words = [word for word in re.split(r"[^A-Za-z0-9]+", problem_name) if word and not word.isdigit()]
    stem = "".join(word[0].upper() + word[1:] for word in words).lstrip("0123456789")
    return f"{stem}Kernel"


def section(title: str) -> str:
    """A banner comment, 120 columns wide."""
    return f"# {'-' * (117 - len(title))} {title}"


def header(problem: Problem, candidate: Candidate, verdict: Verdict | None, name: str, today: datetime.date) -> str:
    """The file's docstring: where the kernel comes from, what was measured, how to use and verify it."""
    lines = [
        f'"""{name}: a kernel for {plain(problem.id)}, written by kernelwright. Needs torch and, to build, g++.',
        "",
        f"    candidate    {candidate.sha256}",
        f"    problem      {plain(problem.id)} (source sha256 {problem.sha256})",
        f"    backend      {candidate.backend}",
        *([f"    knobs        {plain(str(dict(sorted(candidate.knobs.items()))))}"] if candidate.knobs else []),
        *measured(verdict),
        f"    exported     {today.isoformat()}",
        "",
        "It replaces the reference, with the same constructor arguments and state dict. To share the weights of a live",
        f"module, call {name}.from_reference(model). The kernel runs for the shapes, dtypes, layouts and constructor",
        "arguments for which it was checked, in the mode that was checked and without gradients. Any other call runs",
        "the reference; model.kernel_active(*inputs) tells which one runs, and why. The kernel is compiled on first",
        "use, for the machine that runs it. Its speed was measured elsewhere and may differ here.",
        "",
        f"Verify: run this file, or `kernelwright kernels verify {candidate.sha256[:12]}`.",
        '"""',
    ]
    return "\n".join(lines)


def measured(verdict: Verdict | None) -> list[str]:
    """The header's lines about the verdict."""
    if verdict is None:
        return ["    measured     nothing: this kernel comes without a verdict"]
    lines = [f"    verdict      {verdict.status.value}, stage {verdict.stage.value if verdict.stage else 'none'}"]
    if verdict.timing is not None:
        time, threads = verdict.timing.latency_ms, verdict.timing.threads
        if verdict.variant is not None:
            lines.append(f"    timed on     {plain(verdict.variant.describe())}")
        lines.append(f"    latency      {time.median:.4g} ms [{time.low:.4g}, {time.high:.4g}], threads: {threads}")
        for baseline, speedup in sorted(verdict.timing.speedup.items()):
            interval = f"{speedup.median:.3f}x [{speedup.low:.3f}, {speedup.high:.3f}] (95% interval)"
            lines.append(f"    speedup      {interval} over {plain(baseline)}")
    if verdict.own_kernel_label is not None:
        part = verdict.own_kernel_share
        share = "" if part is None else f", {part:.0%} of the time in own kernels"
        lines.append(f"    whose        {verdict.own_kernel_label}{share}")
    return [*lines, f"    environment  {plain(verdict.environment)}"]


def plain(text: str) -> str:
    """Text that can stand in a docstring: printable, one line, no quotes or backslashes."""
    return re.sub(r"[^\w ./:+,()\[\]{}<>=@-]", "_", text)[:200]


def literal(text: str) -> str:
    """Python source of a string, as readable as its content allows; evaluates to exactly ``text``."""
    printable = all(character == "\n" or character.isprintable() for character in text)
    for quotes in ("'''", '"""'):
        if printable and quotes not in text and not text.endswith(("\\", quotes[0])):
            return f"r{quotes}{text}{quotes}"
    return "(\n" + "".join(f"    {line!r}\n" for line in text.splitlines(keepends=True)) + ")"


class Edit(NamedTuple):
    """Replace bytes [start, end) of one line span by ``text``."""

    first: int
    start: int
    last: int
    end: int
    text: str


def bind_runtime(source: str) -> str:
    """The candidate's text with ``kernelwright.inline`` and ``load_inline`` taken from the file's own runtime.

    Raises:
        ValueError: the text imports another part of kernelwright.
    """
    lines = source.encode().splitlines(keepends=True)
    tree = ast.parse(source)
    for edit in sorted((*import_edits(tree), *extension_edits(tree)), reverse=True):
        head, tail = lines[edit.first][: edit.start], lines[edit.last][edit.end :]
        lines[edit.first : edit.last + 1] = [head + edit.text.encode() + tail]
    return b"".join(lines).decode()


def import_edits(tree: ast.Module) -> Iterable[Edit]:
    """The import statements to replace."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kernelwright" and node.level == 0:
            targets = [import_from(node.module or "", alias) for alias in node.names]
        elif isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "kernelwright" for alias in node.names):
            targets = [plain_import(alias) for alias in node.names]
        else:
            continue
        last = (node.end_lineno or node.lineno) - 1
        yield Edit(node.lineno - 1, node.col_offset, last, node.end_col_offset or 0, "; ".join(targets))


def extension_edits(tree: ast.Module) -> Iterable[Edit]:
    """The uses of torch's ``load_inline``. Torch would build with fewer options than the referee did."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == _EXTENSIONS and node.level == 0:
            if not any(alias.name == "load_inline" for alias in node.names):
                continue
            text = "; ".join(from_extensions(alias) for alias in node.names)
        elif isinstance(node, ast.Attribute) and node.attr == "load_inline":
            text = "_kernelwright.load_inline"
        else:
            continue
        last = (node.end_lineno or node.lineno) - 1
        yield Edit(node.lineno - 1, node.col_offset, last, node.end_col_offset or 0, text)


def from_extensions(alias: ast.alias) -> str:
    """The statement that stands for one name of ``from torch.utils.cpp_extension import name``."""
    if alias.name == "load_inline":
        return f"{alias.asname or alias.name} = _kernelwright.load_inline"
    return f"from {_EXTENSIONS} import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")


def import_from(module: str, alias: ast.alias) -> str:
    """The assignment that stands for one name of ``from module import name``."""
    name = alias.asname or alias.name
    if module == "kernelwright" and alias.name == "inline":
        return f"{name} = _kernelwright"
    if module == "kernelwright.inline" and alias.name in ("cpp", "BuildError", "ArgumentError", "Library"):
        return f"{name} = _kernelwright.{alias.name}"
    if module == "kernelwright.inline" and alias.name == "cuda":
        return f"{name} = None"
    raise ValueError(f"it imports {alias.name} from {module}, which an exported file does not have")


def plain_import(alias: ast.alias) -> str:
    """The statement that stands for one module of an ``import`` statement."""
    if alias.name.split(".")[0] != "kernelwright":
        return f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
    if alias.name == "kernelwright.inline" and alias.asname:
        return f"{alias.asname} = _kernelwright"
    if alias.name == "kernelwright.inline":
        return "import types; kernelwright = types.SimpleNamespace(inline=_kernelwright)"
    raise ValueError(f"it imports {alias.name}, which an exported file does not have")


def embedded(modules: Iterable[str]) -> str:
    """Several self-contained modules as one text. Imports are merged; each module is under a banner with its title."""
    imports: set[str] = set()
    bodies = []
    for module in modules:
        source = module_source(module)
        tree = ast.parse(source)
        head = [node for node in tree.body if is_head(node)]
        for node in head:
            own = isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("kernelwright", "__future__"))
            if isinstance(node, ast.Import | ast.ImportFrom) and not own:
                imports.add(ast.unparse(node))
        lines = source.splitlines()[max(node.end_lineno or 0 for node in head) :]
        title = (ast.get_docstring(tree) or "").partition("\n")[0]
        bodies.append(section(title.rstrip(".")[:110]) + "\n" + "\n".join(lines).rstrip())
    plain_imports = sorted(line for line in imports if line.startswith("import "))
    from_imports = merge_from_imports(line for line in imports if line.startswith("from "))
    top = "from __future__ import annotations\n\n" + "\n".join(plain_imports + from_imports)
    return "\n\n\n".join([top, *bodies])


def module_source(name: str) -> str:
    """A module's text, without importing it (the drop-in's would import torch)."""
    spec = importlib.util.find_spec(name)
    source = spec.loader.get_source(name) if spec and isinstance(spec.loader, InspectLoader) else None
    if source is None:
        raise MissingToolError(f"the source of {name} is not installed", hint="install kernelwright with its sources")
    return source


def merge_from_imports(lines: Iterable[str]) -> list[str]:
    """``from a import x`` and ``from a import y`` as one line."""
    names: dict[str, set[str]] = {}
    for line in lines:
        module, _, imported = line.removeprefix("from ").partition(" import ")
        names.setdefault(module, set()).update(imported.split(", "))
    return [f"from {module} import {', '.join(sorted(found))}" for module, found in sorted(names.items())]


def is_head(node: ast.stmt) -> bool:
    """True for the docstring, the imports and ``__all__``, with which every module begins."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Assign):
        return isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
