"""Readers of foreign text: whatever it is, they end, say the same thing twice, and raise only what they document."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernelwright.datasets import LintFinding, lint_static, parse_problem
from kernelwright.errors import InvalidReferenceError
from kernelwright.evaluator.screen.rules import RULES
from kernelwright.evaluator.screen.screening import screen, screen_source
from kernelwright.inline import Signature, parse_signatures
from kernelwright.records import Status

bounded = settings(max_examples=100, derandomize=True, deadline=None, database=None)
any_text = st.text(st.characters(), max_size=80)  # lone surrogates and control characters included


def made_of(*words: str, most: int = 25) -> st.SearchStrategy[str]:
    """Text that is nearly a language: its words in any order, with any text between them."""
    return st.lists(st.sampled_from(words) | st.text(max_size=3), max_size=most).map("".join)


CPP_WORDS = (
    *(
        'extern "C" ',
        "extern ",
        "void ",
        "f",
        "(",
        ")",
        "{",
        "}",
        ";",
        ",",
        "const ",
        "float",
        "*",
        "&",
        "int64_t ",
        "n",
    ),
    *(
        "// ",
        "/*",
        "*/",
        '"',
        "'",
        "\\",
        "\n",
        "\\\n",
        'R"x(',
        ')x"',
        "#",
        "##",
        "#define ",
        "#include ",
        "<",
        ">",
        "[",
        "]",
    ),
    *(
        "typedef ",
        "using ",
        "=",
        "::",
        "struct ",
        "template <typename T> ",
        "__attribute__",
        "operator",
        "1'000",
        "0x1p3",
    ),
    *(
        "asm",
        "volatile",
        "syscall",
        ".incbin",
        "system",
        "fork",
        "F(x) ",
        "F(",
        "__has_include(",
        "%:",
        "??=",
        "??/",
        "\r\n",
    ),
    *(
        "/etc/passwd",
        "static ",
        "_Pragma",
        "\0",
        "\ud800",
        "#if 0\n",
        "#endif\n",
        "%globaltimer",
        "trap;",
        "\t",
        "u8",
        "L",
    ),
)
PYTHON_WORDS = (
    *(
        "import ",
        "torch",
        "from ",
        "as ",
        "class ModelNew",
        "class Model(nn.Module)",
        ":\n",
        "    ",
        "\n",
        "def forward",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "self",
        ",",
        ".",
        "=",
        "x",
        "cpp",
        "lambda ",
        "return ",
        "'",
        '"""',
        "f'{",
        "}'",
        "#",
    ),
    *(
        "@",
        "**",
        "+",
        "os._exit",
        "getattr",
        "sys.modules",
        "try:\n    pass\nexcept ",
        "global ",
        "async ",
        "await ",
        "*",
    ),
    *(
        "match x:\n    case ",
        "_",
        "del ",
        "pass\n",
        "PROBLEM",
        "variants",
        "get_inputs",
        "get_init_inputs",
        "\\\n",
        "\0",
    ),
    *(
        "'/proc/self/mem'",
        ".data_ptr()",
        ".get(",
        "1",
        "1e999",
        "\x0c",
        "\r",
        "\ufeff",
        "\ud800",
        ":=",
        "type X = int\n",
    ),
)
near_cpp, near_python = made_of(*CPP_WORDS), made_of(*PYTHON_WORDS)


# ------------------------------------------------------------------------------------------------ declarations


@settings(bounded, max_examples=300)
@given(near_cpp | any_text, st.dictionaries(st.sampled_from(["f", "n", "F", "float"]), near_cpp, max_size=2))
def test_declarations_of_any_text(source, defines):
    found = parse_signatures(source, defines)
    assert found == parse_signatures(source, defines)
    for name, signature in found.items():
        assert name.isidentifier()
        assert signature is None or (isinstance(signature, Signature) and signature.name == name)


declared_types = {"float": "float", "const double": "double", "int64_t": "int64", "unsigned": "uint32", "bool": "bool"}


@bounded
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(declared_types)), st.booleans(), st.from_regex(r"v_[a-z]{0,5}", fullmatch=True)
        )
    ),
    st.sampled_from(["", "/* f(int) */ ", "__attribute__((hot)) ", "[[gnu::hot]] "]),
    st.sampled_from([" ", "\n", '  // extern "C" void f(char);\n', " \\\n "]),
)
def test_a_declaration_is_read_however_it_is_set(parameters, before, blank):
    listed = f",{blank}".join(f"{kind}{blank}{'*' if pointer else ''}{name}" for kind, pointer, name in parameters)
    source = f'{before}extern{blank}"C"{blank}void{blank}f({listed}){blank}{{ /* }} */ }}'
    signature = parse_signatures(source)["f"]
    assert signature is not None
    assert [(p.type, p.pointer, p.name) for p in signature.parameters] == [
        (declared_types[kind], pointer, name) for kind, pointer, name in parameters
    ]


# ------------------------------------------------------------------------------------------------------ screen


def checked(result) -> None:
    """What holds of every screening."""
    assert result.status in (None, Status.REWARD_HACK, Status.COMPILE_ERROR)
    refusing = [finding for finding in result.findings if finding.effect == "refuses"]
    assert (result.status is None) == (not refusing) == (result.reason == "")
    assert list(result.findings[: len(refusing)]) == refusing
    for finding in result.findings:
        assert RULES[finding.rule].effect == finding.effect
        assert finding.where.startswith("line ")
        assert len(finding.evidence) <= 160
        assert finding.evidence == "" or finding.evidence.isprintable()
        finding.model_dump_json()
    assert len(set(result.findings)) == len(result.findings)
    if refusing:
        assert result.reason.startswith(RULES[refusing[0].rule].reason)


@settings(bounded, max_examples=300)
@given(near_python | any_text, st.sampled_from(["cpp", "triton", "cuda"]), st.booleans())
@example("class ModelNew: f = '\ud800{;fork();'\n", "cpp", False)
@example("\x0cclass ModelNew:\r    open('/proc/self/mem')\r", "cpp", True)
@example("ModelNew = f'{(lambda: 1)()!r:>{3}}' + f'{{;fork();'\n", "cpp", True)
def test_any_file_is_screened(source, backend, control):
    result = screen(source, backend, control)
    assert result == screen(source, backend, control)
    checked(result)


@settings(bounded, max_examples=400)
@given(near_cpp | any_text)
@example("#define F(x, ...) F(__VA_ARGS__ x) F\nF(F, F(1, F), #x ## F)")
@example('asm("' + "\\x" + '");')
@example("#define /* \n */ A(x #x\nA(")
@example("??/\n\\")
def test_any_cpp_text_is_screened(text):
    result = screen_source(text)
    assert result == screen_source(text)
    checked(result)
    lines = text.count("\n") + 1
    assert all(1 <= int(finding.where.removeprefix("line ")) <= lines for finding in result.findings)


@settings(bounded, max_examples=200)
@given(near_cpp)
def test_what_stands_in_a_comment_or_string_trips_no_rule_of_cpp(text):
    inside = "".join(c if c.isprintable() and c not in "\\\"'*/?" else " " for c in text)
    for source in (f"// {inside}\n", f"/* {inside} */", f'const char* note = "see {inside}";', f"#error {inside}\n"):
        assert screen_source(source).findings == (), source


@bounded
@given(st.lists(st.sampled_from(["\\\n", "\\ \n", "\\\r\n"]) | st.just(""), min_size=7, max_size=7))
def test_a_call_is_found_however_its_lines_are_joined(splices):
    call = "".join(a + b for a, b in zip("system(", splices, strict=True))
    result = screen_source(f"int f() {{ return {call}0); }}")
    assert [(finding.rule, finding.where) for finding in result.findings] == [("cpp-process", "line 1")]


@bounded
@given(st.integers(1, 5), st.integers(0, 3), st.booleans())
def test_a_call_is_found_however_it_is_pasted(cut, levels, quoted):
    macros = ["#define M0(a, b) a##b", *(f"#define M{i + 1}(a, b) M{i}(a, b)" for i in range(levels))]
    name, use = "system", "M{}({}, {})(0)"
    if quoted:
        macros, name, use = (
            [*macros, "#define QUOTE(x) #x", "#define TEXT(x) QUOTE(x)"],
            "syscall",
            "asm(TEXT(M{}({}, {})))",
        )
    source = "\n".join(macros) + f"\nvoid f() {{ {use.format(levels, name[:cut], name[cut:])}; }}"
    assert [finding.rule for finding in screen_source(source).findings] == ["cpp-syscall" if quoted else "cpp-process"]


# -------------------------------------------------------------------------------------------------------- lint

PROBLEM_LINES = (
    "import torch",
    "import torch.nn as nn",
    'PROBLEM = {"variants": {"cpu": [{"N": 4}, {"N": 5}]}, "inputs": {"x": {"fill": "normal"}}}',
    'PROBLEM = {"variants": {"cpu": [{"N": 4}, {"N": 4}], "gpu": [{"N": 1}]}, "heavy_ops": ["mm"]}',
    "N = 4",
    "M = N * 2",
    "A, (B, *C) = 1, (2, 3)",
    "N: int = 3",
    "class Model(nn.Module):",
    "class Model(nn.Module):\n    def forward(self, x, y=N):\n        return x + torch.rand(3)",
    "class Model(nn.Module):\n    def forward(self, *xs, **ys):\n        return xs",
    "    def forward(self, x):\n        return x",
    "from lib import Model, get_inputs",
    "def get_inputs():\n    return [torch.randn(N)]",
    "get_inputs = lambda: []",
    "def get_init_inputs():\n    return []",
    "def get_init_inputs(*, n=lambda: N):\n    yield n",
    "f = lambda: [N for N in range(N) if (M := N)]",
)


def parsed(source: str):
    """The problem, or None where it is refused by the one documented error."""
    try:
        return parse_problem(source, id="s/level1/p", suite="s", level=1, name="p")
    except InvalidReferenceError as error:
        line = error.data["line"]
    assert line is None or 1 <= line <= len(source.splitlines()) + 1
    return None


@settings(bounded, max_examples=300)
@given(st.lists(st.sampled_from(PROBLEM_LINES), max_size=14).map("\n".join) | near_python | any_text)
@example("\n".join(PROBLEM_LINES[i] for i in (0, 1, 3, 4, 5, 9, 13, 15)))
@example("\n".join(PROBLEM_LINES[i] for i in (2, 7, 10, 12, 14, 16, 17)))
def test_any_file_is_a_problem_that_can_be_linted_or_is_refused(source):
    problem = parsed(source)
    if problem is None:
        return
    findings = lint_static(problem)
    assert findings == lint_static(problem)
    assert list(findings) == sorted(findings, key=lambda finding: (finding.line or 0, finding.rule))
    assert all(isinstance(finding, LintFinding) and finding.message for finding in findings)


@pytest.mark.parametrize("lines", [(0, 1, 3, 4, 5, 9, 13, 15), (2, 1, 0, 4, 10, 14, 15)])
def test_the_lines_do_make_problems(lines):
    problem = parsed("\n".join(PROBLEM_LINES[i] for i in lines))
    assert problem is not None
    assert lint_static(problem)


DEEP = {
    "constant": "A = " + "not " * 2000 + "x",
    "class": "class Other:\n    y = x" + ".f()" * 400,
    "default": "def g(y=x" + ".f()" * 400 + "):\n    pass",
}


def deep_problem(deep: str) -> str:
    lines = [PROBLEM_LINES[i] for i in (0, 1, 3, 4, 9, 13, 15)]
    return "\n".join([*lines, deep]).replace("return x + torch", f"return x{'.f()' * 450} + torch")


@pytest.mark.parametrize("deep", DEEP.values(), ids=DEEP)
def test_a_deep_file_is_linted(deep):
    problem = parsed(deep_problem(deep))
    assert problem is not None
    rules = {finding.rule for finding in lint_static(problem)}
    assert {"calls-random", "repeated-variant", "heavy-op-name"} <= rules


def below(frames: int, call):
    """What a call gives that is made deep in the stack."""
    return below(frames - 1, call) if frames else call()


def test_what_is_too_deep_to_be_read_here_is_a_finding():
    problem = parsed(deep_problem(DEEP["constant"]))
    assert problem is not None
    assert {finding.rule for finding in below(700, lambda: lint_static(problem))} == {"invalid-reference"}
    assert below(700, lambda: parsed(deep_problem(DEEP["constant"]))) is None


def test_a_deep_base_class_is_read_or_refused():
    source = deep_problem("").replace("class Model(nn.Module)", f"class Model(x{'.f()' * 450})")
    assert parsed(source) is not None
    assert parsed(source.replace("def forward", "def backward")) is not None  # its forward may be inherited
