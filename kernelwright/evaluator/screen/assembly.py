"""The screen's rules over assembly, statement by statement: text inside ``asm(...)``, and PTX modules.

Only mnemonics count: a comment about a system call is not one, and a table of bytes in C++ is not an instruction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_PROCESS_NAMES = """
system popen fork vfork execl execle execlp execv execve execvp execvpe fexecve posix_spawn posix_spawnp ptrace
process_vm_readv process_vm_writev kill tgkill killpg _exit _Exit quick_exit unshare setns pivot_root userfaultfd
perf_event_open io_uring_setup
"""
PROCESS_CALLS = frozenset(_PROCESS_NAMES.split())
_BLOCK_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)", re.DOTALL)
_LINE_COMMENT = re.compile(r"//.*|(?:^|(?<=\s))#(?=\s|$).*")  # "#0" is a number on ARM, "# 0" is a comment on x86
_STATEMENT = re.compile(
    r"\s*(?:[\w.$%]{1,200}:\s*)?"  # a label
    r"(?:@!?%?\w{1,80}\s+|(?:lock|rep\w{0,3}|data16|notrack|bnd|volatile)\s+){0,4}"  # a guard, or prefixes
    r"(?P<name>\.?[A-Za-z_][\w.:]*)(?P<rest>.*)",
    re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_CLOCK_REGISTER = re.compile(r"%(?:globaltimer|clock)(?:64|_lo|_hi)?\b|\bcntvct_el0\b")
_PTX = re.compile(r"^[^\S\n]*\.version\s+\d", re.MULTILINE)
_FIXED = re.compile(r"\[\s*(?:0[xX][0-9a-fA-F]+|[0-9]+)U?(?:\s*[+]\s*(?:0[xX][0-9a-fA-F]+|[0-9]+))?\s*\]")
_SMALL_SPACES = re.compile(r"\.(?:shared|local|const|param)\b")  # a kernel's own spaces, where 0 is a valid address

_SYSTEM_CALLS = frozenset(("syscall", "sysenter", "svc", "swi"))
_JUMPS = frozenset(("call", "callq", "jmp", "jmpq", "bl", "b"))
_ALIASES = frozenset((".set", ".equ", ".equiv", ".symver", ".weakref"))
_DATA = re.compile(r"\.(?:[248]?byte|short|hword|word|value|int|long|quad|octa|ascii|asciz|string)")
_INFORMING = {
    "rdtsc": "timing-call",
    "rdtscp": "timing-call",
    "rdpmc": "timing-call",
    "trap": "exit-call",
    "brkpt": "exit-call",
    "ud2": "exit-call",
    "int3": "exit-call",
    "hlt": "exit-call",
    "nanosleep": "delay",
    "clflush": "cache-policy",
    "clflushopt": "cache-policy",
    "clwb": "cache-policy",
    "cldemote": "cache-policy",
    "wbinvd": "cache-policy",
    "createpolicy": "cache-policy",
    "applypriority": "cache-policy",
    "discard": "cache-policy",
}


def looks_like_ptx(text: str) -> bool:
    """Whether a text is a PTX module, which begins with its ``.version``."""
    return _PTX.search(text) is not None


def scan_assembly(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield (rule, line from 0, evidence) for the statements of an assembly text without quotes and escapes."""
    plain = _BLOCK_COMMENT.sub(lambda found: " " + "\n" * found.group().count("\n"), text)
    for number, line in enumerate(plain.split("\n")):
        for statement in re.split(r"[;{}]", _LINE_COMMENT.sub("", line)):
            for rule in _rules_of(statement):
                yield rule, number, " ".join(statement.split())
    if text.strip() in PROCESS_CALLS:  # the symbol of a declaration: int f() asm("system");
        yield "cpp-process", 0, text.strip()


def _rules_of(statement: str) -> Iterator[str]:
    match = _STATEMENT.match(statement)
    if match is None:
        return
    name, rest = match["name"], match["rest"]
    operation = name.partition(".")[0]
    if name in _SYSTEM_CALLS or (name == "int" and re.match(r"\s*\$?(?:0x80|128)\b", rest)):
        yield "cpp-syscall"
    elif name in (".incbin", ".include"):
        yield "cpp-incbin"
    elif name in _JUMPS or name in _ALIASES:
        if PROCESS_CALLS & set(_WORD.findall(rest[:1000])):
            yield "cpp-process"
    elif _DATA.fullmatch(name):
        yield "machine-code"
    elif name in (".section", ".pushsection") and re.match(r"\s*\.(?:preinit_array|init_array|ctors|init)\b", rest):
        yield "static-constructor"
    elif operation in _INFORMING:
        yield _INFORMING[operation]
    if "evict_last" in name or "evict_last" in rest:
        yield "cache-policy"
    if _CLOCK_REGISTER.search(rest):
        yield "timing-call"
    if operation in ("ld", "st", "atom", "red", "ldu") and not _SMALL_SPACES.search(name) and _FIXED.search(rest):
        yield "fixed-address"
