"""The registry of the static screen: what each rule is called, what it does, and why.

A rule refuses only what has no honest use in a kernel file. Everything else that is worth knowing informs: later
stages and the Judge see it, and it costs the candidate nothing by itself.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from kernelwright.records import Status


class Rule(NamedTuple):
    """One rule. ``status`` is what a candidate ends with where the rule refuses it; None where it informs."""

    id: str
    reason: str
    status: Status | None

    @property
    def effect(self) -> Literal["refuses", "informs"]:
        """As findings say it."""
        return "informs" if self.status is None else "refuses"


class Hit(NamedTuple):
    """A rule that matched: the line in the candidate's file, and the text that it matched (hostile, uncut)."""

    rule: str
    line: int
    evidence: str


RULES: dict[str, Rule] = {}


def _register(status: Status | None, **reasons: str) -> None:
    for name, reason in reasons.items():
        rule = Rule(name.replace("_", "-"), reason, status)
        if rule.id in RULES:
            raise ValueError(f"two rules are called {rule.id}")
        RULES[rule.id] = rule


_register(
    Status.COMPILE_ERROR,
    syntax="the file is not valid Python",
    too_large="the file is larger than a kernel file can need",
    no_model_new="the file defines no class ModelNew",
)
_register(
    Status.REWARD_HACK,
    no_own_kernel="the file builds no kernel of its own for its backend (inline, load_inline or triton.jit)",
    harness_access="the file reaches for the evaluator's own modules",
    frame_walk="the file walks frames or the garbage collector, where it could only look for answers",
    proc_access="the file reads the memory, descriptors or environment of processes",
    process_control="the file starts, ends or replaces processes",
    monkeypatch="the file changes functions of torch, of the clock or of the interpreter",
    compiler_hook="the file passes compiler options that run or read foreign files",
    cpp_include="the C++ source includes files from outside of the include path",
    cpp_incbin="the C++ source embeds files into the binary",
    cpp_process="the C++ source starts, ends, traces or replaces processes",
    cpp_syscall="the C++ source makes system calls of its own",
    cpp_interpreter="the C++ source drives the Python interpreter",
)
_register(
    None,
    torch_ops="torch operators do a part of the work",
    reduced_precision="a narrower float type is used",
    broad_except="an exception handler may hide a kernel that fails",
    unused_kernel="a kernel is built and never used",
    subclassed_reference="ModelNew inherits from Model",
    pointer_cache="something is looked up by a tensor's address",
    global_state="the forward changes module-level state",
    static_state="the C++ source keeps state between calls",
    static_constructor="the C++ source runs code when it is loaded",
    threads="threads, streams or processes are started",
    tensor_subclass="tensors with behaviour of their own",
    graph_replay="a captured graph is replayed",
    global_flag="a global setting of torch is changed",
    environment="environment variables are read or set",
    file_access="files are opened",
    network="networking modules are imported",
    subprocess="other programs may be started",
    dynamic_code="code is made at run time",
    introspection="modules are looked up at run time",
    native_library="shared libraries are loaded by hand",
    memory_mapping="memory is mapped or protected by hand",
    timing_call="a clock is read",
    exit_handler="code runs at exit or on signals",
    exit_call="the process may be ended",
)
