"""The screen's view of C, C++ and CUDA text: a small tokenizer, and rules over its tokens.

It works on tokens, not on words: a comment about fork() is no call, ``x.clone()`` is no process, and code after ``//``
inside a string is still code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernelwright.evaluator._screen_rules import Hit


class Token(NamedTuple):
    """kind: ``word``, ``string`` (text without quotes), ``directive`` (a whole preprocessor line) or ``mark``."""

    kind: str
    text: str
    line: int


_TOKEN = re.compile(
    r"""
      (?P<blank>\s+ | //[^\n]* | /\*.*?(?:\*/|\Z))
    | (?P<raw>(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\((?P<rawbody>.*?)(?:\)(?P=fence)"|\Z))
    | (?P<string>(?:u8|[uUL])?"(?P<body>(?:\\.|[^"\\\n])*)(?:"|(?=\n)|\Z))
    | (?P<char>(?:u8|[uUL])?'(?:\\.|[^'\\\n])+')
    | (?P<number>\.?[0-9](?:[eEpP][+-]|'(?=[0-9a-zA-Z])|[\w.])*)
    | (?P<word>[A-Za-z_$][\w$]*)
    | (?P<mark>->|::|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_DIRECTIVE = re.compile(r"[^\S\n]*(?:\#|%:)(?:[^\n/\"]|\"(?:\\.|[^\"\\\n])*(?:\"|(?=\n)|\Z)|/(?![/*]))*")

_PROCESS_NAMES = """
system popen fork vfork execl execle execlp execv execve execvp execvpe fexecve posix_spawn posix_spawnp ptrace
process_vm_readv process_vm_writev kill tgkill killpg _exit _Exit quick_exit unshare setns pivot_root userfaultfd
perf_event_open io_uring_setup
"""
_PROCESS_CALLS = frozenset(_PROCESS_NAMES.split())
_INTERPRETER_WORDS = re.compile(r"Py(?:Run|Frame|ThreadState|Interpreter|Gilstate)_\w*|PyEval_(?:GetFrame|Eval|Get)\w*")
_INFORMING_CALLS = {
    "mmap": "memory-mapping",
    "mprotect": "memory-mapping",
    "mremap": "memory-mapping",
    "madvise": "memory-mapping",
    "dlopen": "native-library",
    "dlsym": "native-library",
    "fopen": "file-access",
    "open": "file-access",
    "getenv": "environment",
    "setenv": "environment",
    "putenv": "environment",
    "pthread_create": "threads",
    "sched_setaffinity": "threads",
    "pthread_setaffinity_np": "threads",
    "clock_gettime": "timing-call",
    "gettimeofday": "timing-call",
    "__rdtsc": "timing-call",
    "atexit": "exit-handler",
    "signal": "exit-handler",
    "sigaction": "exit-handler",
    "exit": "exit-call",
    "abort": "exit-call",
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
_PARAMETER_TOKENS = 1000  # a longer parameter list is no definition: keeps hostile nesting linear
_CONTAINERS = frozenset(("map", "unordered_map", "vector", "set", "unordered_set", "Tensor", "deque", "list"))
_SYSTEM_CALL = re.compile(r"\b(?:syscall|sysenter|svc|int\s+\$?0x80)\b")
PRIVATE_PROC = re.compile(r"/proc/?(?:$|\s|self\b|thread-self\b|\d|[%{*])|/dev/k?mem\b")


def looks_like_cpp(text: str) -> bool:
    """Whether a string of the candidate may be source text for a compiler or an assembler."""
    return ("{" in text and ";" in text) or re.search(r"^\s*(?:#|%:)", text, re.MULTILINE) is not None


def tokenize(text: str) -> Iterator[Token]:
    """Tokens of C++ source; never fails, unknown characters are marks. Comments and blanks are left out."""
    text = text.replace("\\\r\n", "  \n").replace("\\\n", "  ")  # line splices come before everything else
    position, line, fresh = 0, 1, True
    while position < len(text):
        directive = _DIRECTIVE.match(text, position) if fresh else None
        match = directive or _TOKEN.match(text, position)
        if match is None:  # pragma: no cover - the last alternative takes any character
            return
        if directive:
            yield Token("directive", directive.group().strip(), line)
        elif match.lastgroup != "blank" and match["blank"] is None:
            yield _token(match, line)
        line += match.group().count("\n")
        fresh = directive is None and (match["blank"] is not None and (fresh or "\n" in match.group()))
        position = match.end()


def _token(match: re.Match[str], line: int) -> Token:
    if match["raw"] is not None:
        return Token("string", match["rawbody"], line)
    if match["string"] is not None:
        return Token("string", match["body"], line)
    return Token("word" if match["word"] is not None else "mark", match.group(), line)


def scan(text: str, first_line: int = 1) -> list[Hit]:
    """What the rules find in one source text; lines count from ``first_line``."""
    tokens = list(tokenize(text))
    hits = [*_directives(tokens), *_strings(tokens), *_calls(tokens), *_words(tokens), *_statics(tokens)]
    return [hit._replace(line=hit.line + first_line - 1) for hit in hits]


def _directives(tokens: Sequence[Token]) -> Iterator[Hit]:
    for token in tokens:
        if token.kind != "directive":
            continue
        name, rest = _split_directive(token.text)
        if name == "embed":
            yield Hit("cpp-incbin", token.line, token.text)
        if name in ("include", "include_next", "import"):
            path = rest[1:].rstrip('>"')
            if rest[:1] not in ("<", '"') or path.startswith(("/", "~")) or ".." in path.split("/"):
                yield Hit("cpp-include", token.line, token.text)
        if name == "define":
            yield from _calls(list(tokenize(rest)), token.line - 1)
            yield from _strings(list(tokenize(rest)), token.line - 1)


def _split_directive(text: str) -> tuple[str, str]:
    """Name and argument: ``#  include"x"`` is include and "x"."""
    body = text.removeprefix("#").removeprefix("%:").lstrip()
    name = re.match(r"[a-z_]*", body)
    length = name.end() if name else 0
    return body[:length], body[length:].strip()


def _strings(tokens: Sequence[Token], offset: int = 0) -> Iterator[Hit]:
    assembler = any(token.text in ("asm", "__asm__", "__asm") for token in tokens if token.kind == "word")
    for token in tokens:
        if token.kind != "string":
            continue
        if PRIVATE_PROC.match(token.text):
            yield Hit("proc-access", token.line + offset, token.text)
        if assembler and re.search(r"\.(?:incbin|include)\b", token.text):
            yield Hit("cpp-incbin", token.line + offset, token.text)
        if assembler and _SYSTEM_CALL.search(token.text):
            yield Hit("cpp-syscall", token.line + offset, token.text)


def _calls(tokens: Sequence[Token], offset: int = 0) -> Iterator[Hit]:
    own = _defined(tokens)
    for i, token in enumerate(tokens):
        if token.kind != "word" or not _is_call(tokens, i) or token.text in own:
            continue
        if token.text in _PROCESS_CALLS:
            yield Hit("cpp-process", token.line + offset, f"{token.text}()")
        elif token.text == "syscall":
            yield Hit("cpp-syscall", token.line + offset, "syscall()")
        elif token.text in _INFORMING_CALLS:
            yield Hit(_INFORMING_CALLS[token.text], token.line + offset, f"{token.text}()")


def _is_call(tokens: Sequence[Token], i: int) -> bool:
    """A call of a free function: not a member, not of a foreign namespace, not a declaration."""
    if i + 1 >= len(tokens) or tokens[i + 1].text != "(":
        return False
    before = tokens[i - 1] if i else Token("mark", ";", 0)
    if before.text == "::":
        return i < 2 or tokens[i - 2].kind != "word" or tokens[i - 2].text in ("std", "return")
    if before.text in (".", "->"):
        return False
    return before.kind != "word" or before.text in ("return", "else", "do", "co_return", "throw")


def _defined(tokens: Sequence[Token]) -> set[str]:
    """Functions that the source defines itself: a name, balanced parentheses, an opening brace."""
    names = set()
    for i, token in enumerate(tokens[:-1]):
        if token.kind != "word" or tokens[i + 1].text != "(" or i == 0 or tokens[i - 1].kind not in ("word", "mark"):
            continue
        if tokens[i - 1].kind == "mark" and tokens[i - 1].text not in ("*", "&", ">"):
            continue
        end = _closing(tokens, i + 1)
        if end + 1 < len(tokens) and tokens[end + 1].text == "{" and tokens[i - 1].text not in ("return", "else", "do"):
            names.add(token.text)
    return names


def _closing(tokens: Sequence[Token], opening: int) -> int:
    depth = 0
    for i in range(opening, min(len(tokens), opening + _PARAMETER_TOKENS)):
        depth += {"(": 1, ")": -1}.get(tokens[i].text, 0) if tokens[i].kind == "mark" else 0
        if depth == 0:
            return i
    return len(tokens)


def _words(tokens: Sequence[Token]) -> Iterator[Hit]:
    for i, token in enumerate(tokens):
        if token.kind != "word":
            continue
        qualified = tokens[i - 2].text if i >= 2 and tokens[i - 1].text == "::" else ""
        if _INTERPRETER_WORDS.fullmatch(token.text) or (qualified in ("py", "pybind11") and token.text in _PY_NAMES):
            yield Hit("cpp-interpreter", token.line, f"{qualified}::{token.text}".lstrip(":"))
        elif token.text in _INFORMING_WORDS:
            yield Hit(_INFORMING_WORDS[token.text], token.line, token.text)
        elif token.text in ("thread", "async") and qualified == "std":
            yield Hit("threads", token.line, f"std::{token.text}")
        elif token.text == "constructor" and any(t.text == "__attribute__" for t in tokens[max(0, i - 3) : i]):
            yield Hit("static-constructor", token.line, "__attribute__((constructor))")


_PY_NAMES = frozenset(("exec", "eval", "eval_file", "globals"))


def _statics(tokens: Sequence[Token]) -> Iterator[Hit]:
    """``static`` containers and tensors: what a kernel would cache answers in."""
    for i, token in enumerate(tokens):
        if token.text not in ("static", "thread_local") or token.kind != "word":
            continue
        for following in tokens[i + 1 : i + 12]:
            if following.text in (";", "(", "{", "="):
                break
            if following.text in _CONTAINERS:
                yield Hit("static-state", token.line, f"{token.text} {following.text}")
                break
