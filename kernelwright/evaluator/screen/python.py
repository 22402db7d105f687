"""The screen's rules over a candidate's Python: its imports, calls, assignments and strings."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from kernelwright.evaluator.screen.cpp import PRIVATE_PROC
from kernelwright.evaluator.screen.names import FunctionNode, Scopes, parameters
from kernelwright.evaluator.screen.rules import Hit
from kernelwright.records import Backend

_BUILDERS: Mapping[str, frozenset[Backend]] = {
    "kernelwright.inline.cpp": frozenset({"cpp"}),
    "kernelwright.inline.cuda": frozenset({"cuda"}),
    "torch.utils.cpp_extension.load_inline": frozenset({"cpp", "cuda"}),
    "torch.utils.cpp_extension.load": frozenset({"cpp", "cuda"}),
    "torch.cuda._compile_kernel": frozenset({"cuda"}),
    "triton.jit": frozenset({"triton", "cuda"}),
    "triton.runtime.jit.jit": frozenset({"triton", "cuda"}),
    "triton.experimental.gluon.jit": frozenset({"triton", "cuda"}),
}
_FOR_CANDIDATES = frozenset(("cpp", "cuda", "ArgumentError", "BuildError", "Library"))  # of kernelwright.inline
_FRAME_CALL = re.compile(
    r"sys\.(?:_getframe|_getframemodulename|_current_frames|_current_exceptions|settrace|setprofile)"
    r"|inspect\.(?:stack|currentframe|trace|getouterframes|getinnerframes)"
    r"|gc\.(?:get_objects|get_referrers|get_referents)|traceback\.walk_(?:stack|tb)"
)
_FRAME_ATTRIBUTES = frozenset(("f_back", "f_locals", "f_globals", "f_builtins", "tb_frame", "gi_frame", "cr_frame"))
_PROCESS_CALL = re.compile(
    r"os\.(?:system|popen|fork|forkpty|exec[lv]p?e?|spawn[lv]p?e?|posix_spawnp?|_exit|abort|kill|killpg|pidfd_open)"
    r"|pty\.(?:fork|spawn)|posix\.(?:_exit|fork|system|kill)|signal\.(?:raise_signal|pthread_kill)"
)
_SETTING_CALL = re.compile(
    r"torch\.(?:set_num_threads|set_num_interop_threads|use_deterministic_algorithms|autograd\.set_detect_anomaly)"
)
_PATCHABLE = re.compile(
    r"(?:torch|time|numpy|builtins|sys|gc|os|threading|ctypes|importlib|inspect|json|math|random|kernelwright)\..+"
)
_SETTING = re.compile(
    r"torch\.(?:backends|_dynamo\.config|_inductor\.config|_functorch\.config)\..+|sys\.dont_write_bytecode"
)
_HOOK_FLAG = re.compile(r"-fplugin|--?specs|-wrapper|-B(?:[./]|$)|@|-include|-imacros|-Xlinker|-fuse-ld=/")
_FLAG_ARGUMENTS = frozenset(("flags", "extra_cflags", "extra_cuda_cflags", "extra_ldflags"))
_LINE_END = re.compile(rb"\r\n|\r|\n")
_EVIDENCE_BYTES = 640
_LOOKUPS = frozenset(("get", "setdefault"))
_SETTERS = frozenset(("setattr", "delattr", "object.__setattr__", "type.__setattr__"))
_TENSOR_HOOKS = frozenset(("__torch_function__", "__torch_dispatch__"))
_NARROW = frozenset(("torch.float16", "torch.half", "torch.bfloat16"))
_INFORMING_CALLS = {
    "global-flag": r"torch\.(?:set_default_\w+|set_float32_matmul_precision|set_flush_denormal)",
    "graph-replay": r"torch\.cuda\.(?:CUDAGraph|graph|make_graphed_callables)",
    "threads": r"torch\.cuda\.(?:Stream|stream)|threading\.\w+|concurrent\.futures\.\w+|multiprocessing\.[\w.]+",
    "environment": r"os\.(?:getenv|putenv|environ\.\w+)",
    "file-access": r"open|io\.open|os\.open|pathlib\.Path|numpy\.(?:load|save|fromfile|memmap)|torch\.(?:load|save)"
    r"|(?:codecs|tokenize)\.open|(?:linecache|pkgutil)\.\w+",
    "dynamic-code": r"exec|eval|compile|marshal\.loads?|pickle\.loads?|types\.(?:CodeType|FunctionType)"
    r"|runpy\.\w+",
    "introspection": r"importlib\.[\w.]+|__import__|globals|locals|vars",
    "native-library": r"ctypes\.(?:CDLL|PyDLL|cdll\.[\w.]+|pythonapi\.\w+|string_at|memmove)",
    "memory-mapping": r"mmap\.\w+",
    "timing-call": r"time\.(?:time|perf_counter|monotonic|process_time)(?:_ns)?|torch\.cuda\.Event",
    "exit-handler": r"atexit\.\w+|signal\.(?:signal|alarm|setitimer)|weakref\.finalize",
    "exit-call": r"sys\.exit|exit|quit",
    "subprocess": r"subprocess\.\w+",
}
_CALL_RULES = tuple((rule, re.compile(pattern)) for rule, pattern in _INFORMING_CALLS.items())
_INFORMING_IMPORTS = {"socket": "network", "urllib": "network", "http": "network", "requests": "network"}
_TORCH_OPERATOR = re.compile(
    r"torch\.nn\.functional\.\w+|torch\.ops\.\w+\.\w+|torch\.(?:linalg|special|fft)\.\w+"
    r"|torch\.(?!(?:empty|zeros|ones|full|device|tensor|as_tensor|from_numpy|manual_seed|no_grad|inference_mode|compile|"
    r"Size|Tensor|Generator|is_\w+|get_\w+|set_\w+|finfo|iinfo|load|save|use_\w+)(?:_like|_strided)?$)[a-z]\w*"
)
_TENSOR_METHODS = frozenset(
    ("matmul", "mm", "bmm", "addmm", "softmax", "log_softmax", "relu", "sigmoid", "tanh", "exp", "mean", "sum", "var")
)


class Inspector(ast.NodeVisitor):
    """Walks a module once and collects ``hits``, ``strings`` (text, line) and ``kernel_backends``.

    ``source`` is the text that the tree was parsed from. Each part of the tree is handled once, so the cost of deep
    nesting is linear.
    """

    def __init__(self, source: str) -> None:
        self.hits: list[Hit] = []
        self.strings: list[tuple[str, int]] = []
        self.kernel_backends: set[Backend] = set()
        self._lines = _LINE_END.split(source.encode())
        self._names = Scopes()
        self._operators: dict[str, int] = {}
        self._kernels: dict[str, int] = {}
        self._libraries: set[str] = set()  # names of built kernels: their methods are not tensor methods
        self._loads: Counter[str] = Counter()
        self._addresses = 0  # times that .data_ptr was seen

    def inspect(self, tree: ast.Module) -> None:
        """Visit everything, then add the hits that depend on the whole file."""
        self._names.enter(tree.body)
        self._visit_body(tree.body)
        self._names.leave()
        if self._operators:
            line = min(self._operators.values())
            self.hits.append(Hit("torch-ops", line, ", ".join(sorted(self._operators))))
        self.hits += [Hit("unused-kernel", line, name) for name, line in self._kernels.items() if not self._loads[name]]

    def _add(self, rule: str, node: ast.AST, evidence: str | None = None) -> None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        if evidence is None:
            evidence = b"".join(self._lines[line - 1 : line])[column : column + _EVIDENCE_BYTES].decode(
                errors="replace"
            )
        self.hits.append(Hit(rule, line, evidence))

    def _visit_body(self, body: Sequence[ast.stmt]) -> None:
        documented = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
        for statement in body[1:] if documented else body:
            self.visit(statement)

    # ------------------------------------------------------------------------------------------------ definitions

    def visit_FunctionDef(self, node: FunctionNode) -> None:
        """Open a scope; a builder among the decorators makes it a kernel."""
        for decorator in node.decorator_list:
            self.visit(decorator)
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self._builds(target):
                self._kernels[node.name] = node.lineno
        if node.name in _TENSOR_HOOKS:
            self._add("tensor-subclass", node, node.name)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit(default)
        self._names.enter(node.body, parameters(node))
        self._visit_body(node.body)
        self._names.leave()

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Handled like any function."""
        self.visit_FunctionDef(node)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Parameters hide outer names."""
        self._names.enter([], parameters(node))
        self.visit(node.body)
        self._names.leave()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        """Check whether a base is the reference or a tensor."""
        for base in node.bases:
            if node.name == "ModelNew" and isinstance(base, ast.Name) and base.id == "Model":
                self._add("subclassed-reference", node, "class ModelNew(Model)")
            if self._names.resolve(base) == "torch.Tensor":
                self._add("tensor-subclass", node, f"class {node.name}(torch.Tensor)")
        for part in [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]:
            self.visit(part)
        self._visit_body(node.body)

    # ---------------------------------------------------------------------------------------------------- imports

    def visit_Import(self, node: ast.Import) -> None:
        """Check imported modules."""
        for alias in node.names:
            self._imported(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        """Check names imported from modules."""
        for alias in node.names:
            self._imported(f"{node.module or ''}.{alias.name}", node)

    def _imported(self, name: str, node: ast.AST) -> None:
        root = name.partition(".")[0]
        if root == "__main__" or _is_harness(name):
            self._add("harness-access", node, name)
        if root in _INFORMING_IMPORTS:
            self._add(_INFORMING_IMPORTS[root], node, name)

    # ------------------------------------------------------------------------------------------------ expressions

    def visit_Call(self, node: ast.Call) -> None:
        """Apply the rules over calls, then visit the arguments."""
        name = self._names.resolve(node.func)
        if name is not None:
            self._called(name, node)
        method = node.func if isinstance(node.func, ast.Attribute) and name is None else None
        if method and method.attr in _TENSOR_METHODS and _dotted(method.value) not in self._libraries:
            self._operators.setdefault(f".{method.attr}", node.lineno)
        self.visit(node.func)
        self._visit_key(node, node.args, isinstance(node.func, ast.Attribute) and node.func.attr in _LOOKUPS)
        for keyword in node.keywords:
            self.visit(keyword.value)

    def _visit_key(self, node: ast.expr, parts: Sequence[ast.expr], looked_up: bool) -> None:
        """Visit ``parts``. If ``node`` looks them up, an address among them is the key of a cache."""
        before = self._addresses
        for part in parts:
            self.visit(part)
        if looked_up and self._addresses > before:
            self._add("pointer-cache", node)

    def _called(self, name: str, node: ast.Call) -> None:
        if self._builds(node.func):
            self._check_flags(node)
        if _FRAME_CALL.fullmatch(name):
            self._add("frame-walk", node, name)
        if _PROCESS_CALL.fullmatch(name):
            self._add("process-control", node, name)
        if _SETTING_CALL.fullmatch(name):
            self._add("process-setting", node, name)
        if name == "time.sleep":
            self._add("python-sleep", node, name)
        if name in _SETTERS and node.args:
            target = self._names.resolve(node.args[0])
            if target and _PATCHABLE.fullmatch(f"{target}.x") and not _SETTING.fullmatch(f"{target}.x"):
                self._add("monkeypatch", node)
        if name.startswith(("unittest.mock.patch", "mock.patch")):
            self._add("monkeypatch", node)
        if name in ("importlib.import_module", "__import__") and node.args and isinstance(node.args[0], ast.Constant):
            self._imported(str(node.args[0].value), node)
        for rule, pattern in _CALL_RULES:
            if pattern.fullmatch(name):
                self._add(rule, node, name)
        if _TORCH_OPERATOR.fullmatch(name) and name not in _BUILDERS:
            self._operators.setdefault(name, node.lineno)

    def _builds(self, builder: ast.expr) -> bool:
        """Whether an expression is a builder of kernels. Its backends are noted."""
        backends = _BUILDERS.get(self._names.resolve(builder) or "", frozenset[Backend]())
        self.kernel_backends |= backends
        return bool(backends)

    def _check_flags(self, node: ast.Call) -> None:
        arguments = [keyword.value for keyword in node.keywords if keyword.arg in _FLAG_ARGUMENTS]
        for part in (part for argument in arguments for part in ast.walk(argument)):
            flags = part.value.split() if isinstance(part, ast.Constant) and isinstance(part.value, str) else []
            if any(_HOOK_FLAG.match(flag) for flag in flags):
                self._add("compiler-hook", part)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Check for frames, narrow types, the environment, and the harness behind a plain import."""
        name = self._names.resolve(node)
        own = isinstance(node.value, ast.Name) and node.value.id in ("self", "ctx", "cls")
        if node.attr in _FRAME_ATTRIBUTES and not own:
            self._add("frame-walk", node)
        if name is not None and _is_harness(name):
            self._add("harness-access", node, name)
        if name in _NARROW:
            self._add("reduced-precision", node, name)
        if name == "os.environ":
            self._add("environment", node, name)
        self._addresses += node.attr == "data_ptr"
        self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        """Check for ``sys.modules[...]``, and for caches by address."""
        if self._names.resolve(node.value) == "sys.modules":
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if isinstance(key, str) and (key == "__main__" or key.startswith("kernelwright")):
                self._add("harness-access", node)
            self._add("introspection", node)
        self.visit(node.value)
        self._visit_key(node, [node.slice], looked_up=True)

    def visit_Name(self, node: ast.Name) -> None:
        """Count uses, to find unused kernels."""
        if isinstance(node.ctx, ast.Load):
            self._loads[node.id] += 1

    def visit_BinOp(self, node: ast.BinOp) -> None:
        """``a @ b`` is a torch operator; concatenated strings are one text."""
        if isinstance(node.op, ast.MatMult):
            self._operators.setdefault("@", node.lineno)
        if not isinstance(node.op, ast.Add):
            self.generic_visit(node)
            return
        parts = _summands(node)
        texts = [_text_of(part) for part in parts]
        if sum(text is not None for text in texts) > 1:
            self._quoted("".join("{}" if text is None else text for text in texts), node)
        for part in parts:
            self.visit(part)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Check strings for private paths, and collect possible source text."""
        if isinstance(node.value, str):
            self._quoted(node.value, node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Collect an f-string, with its holes written as ``{}``."""
        self._quoted(_text_of(node) or "", node)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def _quoted(self, text: str, node: ast.AST) -> None:
        if PRIVATE_PROC.match(text):
            self._add("proc-access", node)
        self.strings.append((text, getattr(node, "lineno", 1)))

    # ------------------------------------------------------------------------------------------------- statements

    def visit_Assign(self, node: ast.Assign) -> None:
        """Check assignments to foreign objects; note kernels by name."""
        for target in node.targets:
            self._assigned(target)
        if isinstance(node.value, ast.Call) and self._builds(node.value.func):
            self._libraries.update(filter(None, map(_dotted, node.targets)))
            self._kernels.update({target.id: node.lineno for target in node.targets if isinstance(target, ast.Name)})
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Handled like an assignment."""
        self._assigned(node.target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """Handled like an assignment; annotations are ignored."""
        self._assigned(node.target)
        for part in (node.target, node.value):
            if part is not None:
                self.visit(part)

    def visit_Delete(self, node: ast.Delete) -> None:
        """Handled like an assignment."""
        for target in node.targets:
            self._assigned(target)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        """Report state that outlives a call."""
        self._add("global-state", node)

    def _assigned(self, target: ast.expr) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._assigned(element)
            return
        subscripted = isinstance(target, ast.Subscript)
        inner = target.value if isinstance(target, ast.Subscript) else target
        if subscripted and isinstance(inner, ast.Name) and self._names.is_module_global(inner.id):
            self._add("global-state", target)
        name = self._names.resolve(inner)
        if name is None:
            return
        if _SETTING.fullmatch(name):
            self._add("global-flag", target)
        elif subscripted and not (name == "sys.modules" or name.endswith(".__dict__")):
            return  # os.environ[...] = ... is reported where it is read
        elif isinstance(inner, ast.Attribute) and _PATCHABLE.fullmatch(name) and name not in ("os.environ", "sys.path"):
            self._add("monkeypatch", target)

    def visit_Try(self, node: ast.Try) -> None:
        """Report handlers that catch everything."""
        for handler in node.handlers:
            names = [self._names.resolve(t) for t in _handled(handler)]
            if not names or any(name in ("Exception", "BaseException", "RuntimeError") for name in names):
                self._add("broad-except", handler, f"except {', '.join(str(name) for name in names)}")
        self.generic_visit(node)


def _is_harness(name: str) -> bool:
    """Whether candidates may not use a name of kernelwright: all but the public names of ``inline`` and the version."""
    root, *path = name.split(".")
    if root != "kernelwright" or not path or path == ["__version__"]:
        return False
    return path[0] != "inline" or (len(path) > 1 and path[1] not in _FOR_CANDIDATES)


def _dotted(node: ast.expr) -> str:
    """``a.b["c"].d`` in one form; empty if the expression is not a chain of names and literal keys."""
    parts: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            parts.append(f".{node.attr}")
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            parts.append(f"[{node.slice.value!r:.80}]")
        else:
            return ""
        node = node.value
    return "".join([node.id, *reversed(parts)])


def _text_of(node: ast.expr) -> str | None:
    """The text of a string literal, with the holes of an f-string as ``{}``; None for any other expression."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _summands(node: ast.BinOp) -> list[ast.expr]:
    """The terms of a sum, in order."""
    terms: list[ast.expr] = []
    pending: list[ast.expr] = [node]
    while pending:
        term = pending.pop()
        if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Add):
            pending += [term.right, term.left]
        else:
            terms.append(term)
    return terms


def _handled(handler: ast.ExceptHandler) -> list[ast.expr]:
    if handler.type is None:
        return []
    return list(handler.type.elts) if isinstance(handler.type, ast.Tuple) else [handler.type]
