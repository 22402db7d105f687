"""The columns of each kind of data, with types and descriptions.

They give the parquet schema, the features in the card, by which ``datasets`` reads JSONL, and the text of the card. A
type is an Arrow name (``string``, ``float64``, ``int64``, ``bool``), a list type (a list with the type of its entries
as its only entry), or a mapping of fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

__all__ = ["COLUMNS", "KINDS", "Column", "Kind", "arrow_schema", "features_yaml", "type_in_words"]

Kind = Literal["sft", "preferences", "prompts", "trajectories"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

_MESSAGES: Final = [{"role": "string", "content": "string"}]


class Column(NamedTuple):
    """A column: its type, and what it holds."""

    type: Any
    what: str


def _interval(name: str, of: str) -> dict[str, Column]:
    return {
        name: Column("float64", f"{of}: median; none where it was not timed"),
        f"{name}_low": Column("float64", "lower end of its 95% interval"),
        f"{name}_high": Column("float64", "upper end of its 95% interval"),
    }


_PROBLEM: Final = {
    "problem": Column("string", "id of the problem; sizes and variants that differ from the file's own stand behind @"),
    "suite": Column("string", "whose problem it is"),
    "level": Column("int64", "of the problem in its suite"),
    "category": Column("string", "kind of the problem"),
    "backend": Column("string", "language of the kernel: cpp, triton or cuda"),
    "licence": Column("string", "SPDX name of the licence of the reference; 'unknown' where nobody said"),
    "reference": Column("string", "the problem's file: the PyTorch module to be replaced, and its inputs"),
    "reference_sha256": Column("string", "SHA-256 of that text"),
}
_PLACE: Final = {
    "environment": Column("string", "id of the machine and software; the manifest describes them"),
    "device": Column("string", "what it was judged on"),
}
_PROMPT: Final = {"prompt": Column(_MESSAGES, "messages that ask for a new kernel")}

COLUMNS: Final[Mapping[Kind, Mapping[str, Column]]] = {
    "sft": {
        **_PROMPT,
        "completion": Column(_MESSAGES, "the reply: reasoning, then the kernel, as the prompt asks for them"),
        **_PROBLEM,
        "reasoning": Column("string", "the author's own plan; empty where it gave none"),
        "kernel": Column("string", "the candidate file, with its knobs set"),
        "kernel_sha256": Column("string", "SHA-256 of that text"),
        "candidate": Column("string", "the kernel's identity: hash of source and knobs as they were judged"),
        "knobs": Column("string", "settings of its tunable constants, as JSON"),
        **_interval("speedup_eager", "time of eager PyTorch over its time"),
        **_interval("speedup_compile", "time of torch.compile over its time"),
        **_interval("latency_ms", "time of a call in milliseconds"),
        "own_kernel_share": Column("float64", "share of its time spent in kernels of its own, 0 to 1"),
        "status": Column("string", "of the verdict: always PASSED here"),
        "stage": Column("string", "the last stage that it completed: confirmed, or checked"),
        "checked_only": Column("bool", "right, but judged where nothing can be timed, and so without a time"),
        **_PLACE,
        "author": Column("string", "who wrote it"),
        "operator": Column("string", "how it was made: new, repair, improve, ..."),
        "prompt_from": Column("string", "'call': the prompt that was sent; 'rendered': made from the problem"),
        "evaluation": Column("string", "id of the evaluation in the store"),
    },
    "preferences": {
        **_PROMPT,
        "chosen": Column(_MESSAGES, "the reply with the better kernel, which is right and confirmed"),
        "rejected": Column(_MESSAGES, "the reply with the worse one"),
        "why": Column("string", "'right over refused' or 'faster' (95% intervals apart by more than the noise)"),
        **_PROBLEM,
        **_PLACE,
        "checked_only": Column("bool", "the chosen kernel was found right where nothing can be timed"),
        "chosen_candidate": Column("string", "identity of the chosen kernel"),
        "rejected_candidate": Column("string", "identity of the rejected kernel"),
        "chosen_status": Column("string", "always PASSED"),
        "rejected_status": Column("string", "of the rejected kernel's verdict"),
        "rejected_reason": Column("string", "why it was refused; empty for 'faster'"),
        **_interval("chosen_speedup", "over eager PyTorch"),
        **_interval("rejected_speedup", "over eager PyTorch"),
    },
    "prompts": {
        **_PROMPT,
        **_PROBLEM,
        **_PLACE,
        "baseline_eager_ms": Column("float64", "milliseconds of a call in eager PyTorch, where it was measured"),
        "baseline_compile_ms": Column("float64", "the same of torch.compile"),
        "data_source": Column("string", "verl: the suite"),
        "ability": Column("string", "verl: always 'kernel'"),
        "reward_model": Column(
            {"style": "string", "ground_truth": "string"}, "verl: style 'rule', and the problem's id as ground truth"
        ),
        "extra_info": Column(
            {"index": "int64", "split": "string", "problem": "string", "backend": "string"}, "verl: what rewards need"
        ),
    },
    "trajectories": {
        "run": Column("string", "id of the run"),
        **_PROBLEM,
        "recipe": Column("string", "how the run searched"),
        "coder": Column("string", "who wrote its kernels"),
        "judge": Column("string", "who gave advice"),
        "best_reward": Column("float64", "greatest reward of its steps"),
        "steps": Column(
            [
                {
                    "number": "int64",
                    "round": "int64",
                    "purpose": "string",
                    "mode": "string",
                    "parents": ["string"],
                    "candidate": "string",
                    "author": "string",
                    "backend": "string",
                    "source": "string",
                    "knobs": "string",
                    "reasoning": "string",
                    "status": "string",
                    "stage": "string",
                    "reason": "string",
                    "withdrawn": "bool",
                    "environment": "string",
                    "speedup_eager": "float64",
                    "speedup_eager_low": "float64",
                    "speedup_eager_high": "float64",
                    "speedup_compile": "float64",
                    "reward": "float64",
                    "advice": "string",
                    "prompt": "string",
                    "reply": "string",
                }
            ],
            "every evaluation of the problem in the run, in order; mode is 'confirm' where a kernel was measured "
            "again; reward by kernelwright_reward, 0 where the verdict was withdrawn; prompt and reply are empty "
            "where no model was asked",
        ),
    },
}


def arrow_schema(pyarrow: Any, kind: Kind) -> Any:
    """The schema of a kind's parquet files, independent of the rows."""
    return pyarrow.schema([(name, _arrow(pyarrow, column.type)) for name, column in COLUMNS[kind].items()])


def _arrow(pyarrow: Any, kind: Any) -> Any:
    if isinstance(kind, list):
        return pyarrow.list_(_arrow(pyarrow, kind[0]))
    if isinstance(kind, dict):
        return pyarrow.struct([(name, _arrow(pyarrow, inner)) for name, inner in kind.items()])
    return getattr(pyarrow, {"bool": "bool_"}.get(kind, kind))()


def features_yaml(kind: Kind, indent: str) -> Iterator[str]:
    """The features of a kind as lines of a card's YAML, in the form that ``datasets`` reads."""
    for name, column in COLUMNS[kind].items():
        yield from _feature(name, column.type, indent)


def _feature(name: str, kind: Any, indent: str) -> Iterator[str]:
    yield f"{indent}- name: {name}"
    if isinstance(kind, str):
        yield f"{indent}  dtype: {kind}"
    elif isinstance(kind, list) and isinstance(kind[0], str):
        yield f"{indent}  list: {kind[0]}"
    else:
        yield f"{indent}  {'list' if isinstance(kind, list) else 'struct'}:"
        for field, inner in (kind[0] if isinstance(kind, list) else kind).items():
            yield from _feature(field, inner, f"{indent}    ")


def type_in_words(kind: Any) -> str:
    """A type on one line: ``list of {role string, content string}``."""
    if isinstance(kind, list):
        return f"list of {type_in_words(kind[0])}"
    if isinstance(kind, dict):
        return "{" + ", ".join(f"{name} {type_in_words(inner)}" for name, inner in kind.items()) + "}"
    return str(kind)
