"""The screen's rules over C, C++ and CUDA text. They look at tokens, so ``x.clone()`` does not count as a process.

They also look at the text after macro expansion, and at the assembly in it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from kernelwright.evaluator.screen.assembly import PROCESS_CALLS, looks_like_ptx, scan_assembly
from kernelwright.evaluator.screen.macros import expand
from kernelwright.evaluator.screen.rules import Hit
from kernelwright.evaluator.screen.text import (
    Token,
    closing_brackets,
    readings,
    split_directive,
    tokenize,
    unescape,
)

_INTERPRETER_WORDS = re.compile(r"Py(?:Run|Frame|ThreadState|Interpreter|Gilstate)_\w*|PyEval_(?:GetFrame|Eval|Get)\w*")
# Names of the headers and the runtime that emulate CUDA. Any other name that begins with kw_ may be a kernel's own.
_EMULATOR_WORDS = re.compile(
    r"KW_(?:EMULATED|RUNTIME|UNWATCHED|PLAIN|PROCESSORS|SHARED_\w+)|__wrap_\w+|__tsan_\w+|__SANITIZE_THREAD__"
    r"|kw_tensors|torch_headers"
    r"|kw_(?:(?:thread|block)_index|(?:block|grid)_dim|run|message|sync_\w+|warp|dynamic_shared|lane|live_lanes|access)"
    r"|kw_(?:fail|fence|pause|clock_tick|allow\w*|forget\w*|know_module|order|launch\w*|idle|kernel_launch|product_\w+)"
)
_EMULATOR_NAMES = re.compile(rf"\b(?:{_EMULATOR_WORDS.pattern})\b")
_INFORMING_CALLS = {
    "mmap": "memory-mapping",
    "mprotect": "memory-mapping",
    "mremap": "memory-mapping",
    "madvise": "memory-mapping",
    "shm_open": "memory-mapping",
    "memfd_create": "memory-mapping",
    "dlopen": "native-library",
    "dlsym": "native-library",
    "fopen": "file-access",
    "open": "file-access",
    "getenv": "environment",
    "setenv": "environment",
    "putenv": "environment",
    "socket": "network",
    "pthread_create": "threads",
    "sched_setaffinity": "threads",
    "pthread_setaffinity_np": "threads",
    "clock_gettime": "timing-call",
    "gettimeofday": "timing-call",
    "__rdtsc": "timing-call",
    "_rdtsc": "timing-call",
    "__builtin_ia32_rdtsc": "timing-call",
    "sleep": "delay",
    "usleep": "delay",
    "nanosleep": "delay",
    "__nanosleep": "delay",
    "clock_nanosleep": "delay",
    "atexit": "exit-handler",
    "signal": "exit-handler",
    "sigaction": "exit-handler",
    "exit": "exit-call",
    "abort": "exit-call",
    "__trap": "exit-call",
    "__brkpt": "exit-call",
    "__builtin_trap": "exit-call",
    "_mm_clflush": "cache-policy",
    "_mm_clflushopt": "cache-policy",
    "cudaCtxResetPersistingL2Cache": "cache-policy",
}
_INFORMING_WORDS = {
    "ifstream": "file-access",
    "ofstream": "file-access",
    "fstream": "file-access",
    "jthread": "threads",
    "steady_clock": "timing-call",
    "high_resolution_clock": "timing-call",
    "system_clock": "timing-call",
    "clock64": "timing-call",
    "sleep_for": "delay",
    "sleep_until": "delay",
    "cudaAccessPropertyPersisting": "cache-policy",
    "cudaLimitPersistingL2CacheSize": "cache-policy",
    "__half": "reduced-precision",
    "half2": "reduced-precision",
    "_Float16": "reduced-precision",
    "__bf16": "reduced-precision",
    "__nv_bfloat16": "reduced-precision",
    "__nv_bfloat162": "reduced-precision",
    "BFloat16": "reduced-precision",
    "__float_to_tf32": "reduced-precision",
    "wmma": "reduced-precision",
}
_CONTAINERS = frozenset(("map", "unordered_map", "vector", "set", "unordered_set", "Tensor", "deque", "list"))
_CONSTRUCTORS = frozenset(("constructor", "__constructor__"))
_PY_NAMES = frozenset(("exec", "eval", "eval_file", "globals"))
_ASM = frozenset(("asm", "__asm__", "__asm"))
_ASM_QUALIFIERS = frozenset(("volatile", "__volatile__", "__volatile", "inline", "__inline__", "goto", "__goto__"))
_SYMBOL_ATTRIBUTES = frozenset(("alias", "__alias__", "weakref", "__weakref__", "ifunc", "__ifunc__"))
_COMPARISONS = frozenset("=!<>")  # followed by "="
_NO_TYPE = frozenset(("return", "else", "do", "co_return", "co_await", "throw", "case", "goto", "new", "delete"))
PRIVATE_PROC = re.compile(r"/proc/?(?:$|\s|self\b|thread-self\b|\d|[%{*])|/dev/k?mem\b")
_HEADER = re.compile(r'<(?P<system>[^>\n]+)>|"(?P<own>[^"\n]+)"')
_HAS_INCLUDE = re.compile(r"__has_(?:include|include_next|embed)\s*\(\s*([^)\n]*)")
_LINE_MARKER = re.compile(r'\d[^"]*("[^"]*"?)')


def scan(text: str, first_line: int = 1) -> list[Hit]:
    """The hits of the rules in one source text; lines count from ``first_line``."""
    hits: dict[Hit, None] = {}  # each once, in order
    for reading in readings(text):
        tokens = list(tokenize(reading))
        hits.update(dict.fromkeys(_directives(tokens)))
        expanded = expand(tokens)
        own = _defined(tokens) | _defined(expanded)
        for seen in (tokens, expanded):
            hits.update(dict.fromkeys([*_strings(seen), *_calls(seen, own), *_words(seen), *_statics(seen)]))
    if looks_like_ptx(text):
        hits.update(dict.fromkeys(Hit(rule, line + 1, evidence) for rule, line, evidence in scan_assembly(text)))
    return [hit._replace(line=hit.line + first_line - 1) for hit in hits]


# ------------------------------------------------------------------------------------------------- directives


def _directives(tokens: Sequence[Token]) -> Iterator[Hit]:
    for i, token in enumerate(tokens):
        if token.kind == "directive":
            for rule in _directive_rules(*split_directive(token.text)):
                yield Hit(rule, token.line, token.text)
            yield from (Hit("harness-access", token.line, match[0]) for match in _EMULATOR_NAMES.finditer(token.text))
            if re.match(r"(?:#|%:)\s*define\b", token.text):
                yield from _definition(token)
        elif token.text == "_Pragma" and i + 2 < len(tokens) and tokens[i + 2].kind == "string":
            for rule in _directive_rules("pragma", unescape(tokens[i + 2].text)):
                yield Hit(rule, token.line, tokens[i + 2].text)


def _directive_rules(name: str, rest: str) -> Iterator[str]:
    if name == "embed":
        yield "cpp-incbin"
    if name in ("include", "include_next", "import") and _is_foreign(rest):
        yield "cpp-include"
    if name in ("if", "elif") and any(_is_foreign(asked.strip()) for asked in _HAS_INCLUDE.findall(rest)):
        yield "cpp-include"
    if name in ("line", ""):  # compilers quote the line of the file that is named here
        marker = _LINE_MARKER.match(rest)
        if marker and _is_foreign(marker[1]):
            yield "cpp-include"
    if name == "pragma":
        words = rest.split()
        if words[:2] == ["GCC", "dependency"]:
            yield "cpp-include"
        if words[:1] == ["redefine_extname"] and PROCESS_CALLS & set(words):
            yield "cpp-process"


def _is_foreign(header: str) -> bool:
    """Whether an include's argument is not a literal path below the compiler's own folders."""
    match = _HEADER.match(header)
    if match is None:
        return True
    path = match["system"] or match["own"]
    return path.startswith(("/", "~")) or ".." in path.split("/")


def _definition(directive: Token) -> Iterator[Hit]:
    """Hits in a macro's body, whether or not the macro is used."""
    body = directive.text.partition("define")[2]
    for reading in readings("0 " + body):  # keeps a first # from being read as a directive
        tokens = [token._replace(line=directive.line) for token in tokenize(reading)][1:]
        yield from _calls(tokens, _defined(tokens))
        yield from _strings(tokens)


# ---------------------------------------------------------------------------------------------------- strings


def _strings(tokens: Sequence[Token]) -> Iterator[Hit]:
    closing = closing_brackets(tokens)
    assembly_end = 0
    for i, token in enumerate(tokens):
        if token.kind == "string" and PRIVATE_PROC.match(token.text):
            yield Hit("proc-access", token.line, token.text)
        if token.text == "{" and PRIVATE_PROC.match(spelt := _spelt(tokens, i)):
            yield Hit("proc-access", token.line, spelt)
        if token.kind == "word" and token.text in _ASM and i >= assembly_end:
            opening = _opening(tokens, i)
            if opening is not None:
                assembly_end = closing.get(opening, len(tokens))
                yield from _assembly(tokens[opening + 1 : assembly_end])
        if token.kind == "word" and token.text in _SYMBOL_ATTRIBUTES:
            for named in tokens[i + 2 : min(i + 3, closing.get(i + 1, 0))]:
                if named.kind == "string" and named.text in PROCESS_CALLS:
                    yield Hit("cpp-process", named.line, named.text)


def _spelt(tokens: Sequence[Token], i: int) -> str:
    """The text that an initialiser from token ``i`` on spells letter by letter; empty if it spells none."""
    letters = []
    for at in range(i + 1, len(tokens), 2):
        letter = unescape(tokens[at].text) if tokens[at].kind == "char" else ""
        if len(letter) != 1:
            break
        letters.append(letter)
        if at + 1 >= len(tokens) or tokens[at + 1].text != ",":
            break
    return "".join(letters)


def _opening(tokens: Sequence[Token], i: int) -> int | None:
    """Index of the parenthesis after ``asm``, ``asm volatile`` and the like; None without one."""
    for at in range(i + 1, min(i + 5, len(tokens))):
        if tokens[at].text == "(":
            return at
        if tokens[at].text not in _ASM_QUALIFIERS:
            return None
    return None


def _assembly(tokens: Sequence[Token]) -> Iterator[Hit]:
    """Hits in the strings inside ``asm(...)``. Adjacent strings are joined."""
    for is_text, group in itertools.groupby(tokens, key=lambda token: token.kind == "string"):
        if is_text:
            parts = list(group)
            for rule, _, evidence in scan_assembly("".join(unescape(part.text) for part in parts)):
                yield Hit(rule, parts[0].line, evidence)


# ------------------------------------------------------------------------------------------------------ calls


def _calls(tokens: Sequence[Token], own: set[str]) -> Iterator[Hit]:
    for i, token in enumerate(tokens):
        if token.kind != "word" or token.text in own:
            continue
        if token.text in PROCESS_CALLS and (_is_call(tokens, i) or _is_taken(tokens, i)):
            yield Hit("cpp-process", token.line, f"{token.text}()")
        elif token.text == "syscall" and _is_call(tokens, i):
            yield Hit("cpp-syscall", token.line, "syscall()")
        elif token.text in _INFORMING_CALLS and _is_call(tokens, i):
            yield Hit(_INFORMING_CALLS[token.text], token.line, f"{token.text}()")


def _is_call(tokens: Sequence[Token], i: int) -> bool:
    """Whether token ``i`` is a call of a free function: not a member, a foreign namespace's or a declaration."""
    if i + 1 >= len(tokens) or tokens[i + 1].text != "(":
        return False
    before = tokens[i - 1] if i else Token("mark", ";", 0)
    if before.text == "::":
        return i < 2 or tokens[i - 2].kind != "word" or tokens[i - 2].text in ("std", "return")
    if before.text in (".", "->"):
        return False
    return before.kind != "word" or before.text in _NO_TYPE


def _is_taken(tokens: Sequence[Token], i: int) -> bool:
    """Whether a function is called or passed on indirectly: ``(name)(...)``, ``&name``, ``= name;``."""
    before, after = (tokens[i - 1].text if i else ";"), (tokens[i + 1].text if i + 1 < len(tokens) else ";")
    if before == "(" and after == ")":
        return i + 2 < len(tokens) and tokens[i + 2].text == "("
    if before == "&":
        return i < 2 or (tokens[i - 2].kind == "mark" and tokens[i - 2].text in ("=", "(", ",", "{", ";"))
    return before == "=" and after == ";" and (i < 2 or tokens[i - 2].text not in _COMPARISONS)


def _defined(tokens: Sequence[Token]) -> set[str]:
    """Names that the source defines itself: functions with a body, and variables (a lambda may be one)."""
    closing = closing_brackets(tokens)
    names = set()
    for i in range(1, len(tokens) - 1):
        token, before, after = tokens[i], tokens[i - 1], tokens[i + 1]
        typed = (before.kind == "word" and before.text not in _NO_TYPE) or before.text in ("*", "&", ">")
        if token.kind != "word" or not typed or after.kind != "mark":
            continue
        body = closing.get(i + 1, len(tokens)) + 1
        is_function = after.text == "(" and body < len(tokens) and tokens[body].text == "{"
        if is_function or (after.text == "=" and before.kind == "word"):
            names.add(token.text)
    return names


# ------------------------------------------------------------------------------------------------------ words


def _words(tokens: Sequence[Token]) -> Iterator[Hit]:
    closing = closing_brackets(tokens)
    attributes_end = -1
    for i, token in enumerate(tokens):
        if token.kind != "word":
            continue
        if token.text in ("__attribute__", "__attribute"):
            attributes_end = max(attributes_end, closing.get(i + 1, -1))
        qualified = tokens[i - 2].text if i >= 2 and tokens[i - 1].text == "::" else ""
        if _INTERPRETER_WORDS.fullmatch(token.text) or (qualified in ("py", "pybind11") and token.text in _PY_NAMES):
            yield Hit("cpp-interpreter", token.line, f"{qualified}::{token.text}".lstrip(":"))
        elif _EMULATOR_WORDS.fullmatch(token.text) or (token.text == "kw" and _next_is(tokens, i, "::")):
            yield Hit("harness-access", token.line, token.text)
        elif token.text in _INFORMING_WORDS:
            yield Hit(_INFORMING_WORDS[token.text], token.line, token.text)
        elif token.text in ("thread", "async") and qualified == "std":
            yield Hit("threads", token.line, f"std::{token.text}")
        elif token.text in _CONSTRUCTORS and (i < attributes_end or qualified == "gnu"):
            yield Hit("static-constructor", token.line, "__attribute__((constructor))")


def _next_is(tokens: Sequence[Token], i: int, text: str) -> bool:
    return i + 1 < len(tokens) and tokens[i + 1].text == text


def _statics(tokens: Sequence[Token]) -> Iterator[Hit]:
    """``static`` containers and tensors, where a kernel could cache answers. Functions that return one do not count."""
    closing = closing_brackets(tokens)
    for i, token in enumerate(tokens):
        if token.text not in ("static", "thread_local") or token.kind != "word":
            continue
        container = ""
        for j in range(i + 1, min(i + 16, len(tokens))):
            following = tokens[j].text
            if following in (";", "(", "{", "="):
                body = closing.get(j, len(tokens)) + 1
                if following == "(" and body < len(tokens) and tokens[body].text == "{":
                    container = ""
                break
            if following in _CONTAINERS:
                container = container or following
        if container:
            yield Hit("static-state", token.line, f"{token.text} {container}")
