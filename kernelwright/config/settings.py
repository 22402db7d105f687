"""Configuration: one frozen :class:`Settings` object, built once and passed on.

Precedence, highest first: a flag of the command line (``--set NAME=VALUE`` included), a ``KERNELWRIGHT_NAME``
variable, the TOML file (``--config FILE``, else ``kernelwright.toml`` in the working directory), the default. This is
the only module that reads the environment.
"""

from __future__ import annotations

import difflib
import itertools
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from kernelwright.config.environment import ENV_PREFIX
from kernelwright.config.values import (
    Bytes,
    Count,
    FilePath,
    Names,
    Positive,
    Ratio,
    WebAddress,
    Word,
    number,
    number_or_auto,
    optional,
    parameters_of,
    split_at_commas,
)
from kernelwright.errors import UsageError
from kernelwright.records import Backend, KnobValue, Problem
from kernelwright.records.problems import OwnKernels

__all__ = ["CAPTURED", "CONFIG_FILE_NAME", "SettingValue", "Settings"]

CONFIG_FILE_NAME = "kernelwright.toml"
# Variables of others that are read where our own is not set.
ALIASES = {
    "openai_base_url": "OPENAI_BASE_URL",
    "anthropic_base_url": "ANTHROPIC_BASE_URL",
    "suite_dirs": "KERNELWRIGHT_SUITES",
}

KEYS_GO_TO = frozenset({"openai_base_url", "anthropic_base_url"})  # settings that say where keys are sent

_PATH_FIELDS = frozenset({"store", "cache_dir", "prices"})
_PATH_TUPLES = frozenset({"suite_dirs"})

CAPTURED = "captured"  # the suite of modules that were handed over live
OWN_SUITES = frozenset({CAPTURED, "file"})  # of one's own modules and files: on no board but one's own
SandboxName = Literal["auto", "bwrap", "docker", "process", "none"]


class SettingValue(NamedTuple):
    """One value as JSON can hold it, and where it came from (``flag``, ``env ...``, ``file ...``, ``default``)."""

    value: Any
    origin: str


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or os.path.expanduser("~"))


def _xdg(env: Mapping[str, str], name: str, fallback: str) -> Path:
    """An XDG base folder; its specification says that a relative one is to be ignored."""
    given = env.get(name, "")
    return Path(given) if os.path.isabs(given) else _home(env) / fallback


def _default_store(env: Mapping[str, str]) -> Path:
    return _xdg(env, "XDG_DATA_HOME", ".local/share") / "kernelwright" / "store.db"


def _default_cache_dir(env: Mapping[str, str]) -> Path:
    return _xdg(env, "XDG_CACHE_HOME", ".cache") / "kernelwright"


class Settings(BaseModel):
    """Every setting, validated. Build it with :meth:`load`; ``Settings()`` gives the defaults of this user."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    store: FilePath = Field(default_factory=lambda: _default_store(os.environ), description="the SQLite database")
    cache_dir: FilePath = Field(
        default_factory=lambda: _default_cache_dir(os.environ), description="build cache folder"
    )
    sandbox: SandboxName = Field("auto", description="what confines candidates; auto: bwrap, else process")
    device: Literal["auto", "none", "rehearsal"] = Field(
        "auto", description="accelerator for Triton and CUDA; rehearsal: its way of timing, on this CPU, for C++"
    )
    backend: Backend = Field("cpp", description="language of new kernels")
    threads: Count = Field(1, description="threads of a candidate and of the reference while timed")
    compile_lanes: Annotated[Literal["auto"] | Annotated[int, Field(ge=0)], BeforeValidator(number_or_auto)] = Field(
        "auto", description="candidates built while a GPU times another one; auto: as many as cores are left, up to 4"
    )
    baselines: Names = Field(("eager", "compile"), description="what candidates are timed against")
    rounds: Count = Field(6, description="propose-judge rounds for each problem")
    max_minutes: Annotated[Positive | None, BeforeValidator(optional)] = Field(
        None, description="wall-clock budget of a run in minutes; none for no limit"
    )
    max_cost_usd: Annotated[Positive | None, BeforeValidator(optional)] = Field(
        None, description="what the models of a run may cost in dollars; none for no limit"
    )
    max_tokens: Annotated[Count | None, BeforeValidator(optional)] = Field(
        None, description="tokens that the models of a run may use, in and out; none for no limit"
    )
    max_device_seconds: Annotated[Positive | None, BeforeValidator(optional)] = Field(
        None, description="time that a run's candidates may take of the referee in seconds; none for no limit"
    )
    samples: Count = Field(1, description="candidates that a model writes side by side in each round")
    repairs: Annotated[int, BeforeValidator(number), Field(ge=0)] = Field(
        3, description="times that a model's failed kernel is repaired before it is given up"
    )
    branch_from: Literal["best", "latest", "own"] = Field(
        "best", description="which kernel a model goes on from; own: each sample from its own line's latest"
    )
    history: Annotated[int, BeforeValidator(number), Field(ge=0)] = Field(
        16, description="measured moves that a prompt shows at most: the best ones and the latest; 0 for none"
    )
    moves_shown: Annotated[int, BeforeValidator(number), Field(ge=0)] = Field(
        0, description="moves measured on similar problems that a prompt shows at most; 0 for none"
    )
    insights_shown: Annotated[int, BeforeValidator(number), Field(ge=0)] = Field(
        0, description="findings of Judges, here and on similar problems, that a prompt shows at most; 0 for none"
    )
    scratchpad_every: Annotated[int, BeforeValidator(number), Field(ge=0)] = Field(
        0, description="rounds after which what was learned on a problem is summed up for prompts; 0 for never"
    )
    exemplar: Literal["category", "pointwise", "none"] = Field(
        "category", description="right kernel that a model is shown: of the problem's category, or always the same"
    )
    search_seed: Annotated[int, BeforeValidator(number)] = Field(
        0, description="what the draws of an evolutionary search follow from, besides the verdicts"
    )
    stall_rounds: Annotated[Count | None, BeforeValidator(optional)] = Field(
        None, description="rounds of a model without a gain that end a problem; none for no such end"
    )
    speed_of_light: Annotated[Positive | None, BeforeValidator(optional)] = Field(
        0.95, description="share of the roofline's speed at which a model's problem ends; none for no such end"
    )
    parallel_problems: Annotated[Literal["auto"] | Count, BeforeValidator(number_or_auto)] = Field(
        "auto", description="problems worked on side by side; auto: 1, or 8 with a model that others run"
    )
    llm_concurrency: Count = Field(8, description="requests to one provider at once")
    llm_tries: Count = Field(6, description="times that a request is sent at most, where sending it again may help")
    max_output_tokens: Count = Field(16000, description="longest reply of a model in tokens, its reasoning included")
    coder_parameters: Annotated[dict[str, KnobValue], BeforeValidator(parameters_of)] = Field(
        default_factory=dict, description="given to the coder's model, for example temperature=0.7,seed=3"
    )
    judge_parameters: Annotated[dict[str, KnobValue], BeforeValidator(parameters_of)] = Field(
        default_factory=dict, description="given to the judge's model, for example effort=high"
    )
    verifier_parameters: Annotated[dict[str, KnobValue], BeforeValidator(parameters_of)] = Field(
        default_factory=dict, description="given to the verifier's model"
    )
    tester_parameters: Annotated[dict[str, KnobValue], BeforeValidator(parameters_of)] = Field(
        default_factory=dict, description="given to the tester's model"
    )
    replies: Literal["reuse", "fresh"] = Field(
        "reuse", description="reuse: replies to equal questions are taken from the store; fresh: of this run only"
    )
    prices: Annotated[Path | None, BeforeValidator(optional)] = Field(
        None, description="TOML file with prices of models, over the built-in table"
    )
    mailbox_minutes: Annotated[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None, BeforeValidator(optional)] = (
        Field(
            None,
            description="how long a run waits for replies in a mailbox before it pauses; none for as long as needed",
        )
    )
    coder: Word = Field("offline", description="who writes kernels")
    models: Annotated[tuple[Word, ...], BeforeValidator(split_at_commas)] = Field(
        (), description="further models that write kernels; a search draws among them and the coder's"
    )
    judge: Word = Field("offline", description="who gives advice")
    tester: Word = Field("offline", description="who proposes inputs for a problem's archive besides the search")
    verifier: Word = Field("none", description="who predicts failures before a candidate is judged; none: nobody")
    openai_base_url: WebAddress = Field(
        "https://api.openai.com/v1", description="where openai:MODEL is asked; any server of chat completions"
    )
    anthropic_base_url: WebAddress = Field(
        "https://api.anthropic.com", description="where anthropic:MODEL is asked; any server of messages"
    )
    llm_timeout_s: Positive = Field(600.0, description="limit for one reply of a language model in seconds")
    recipe: Word = Field("default", description="search recipe")
    suite_dirs: Annotated[tuple[Path, ...], BeforeValidator(split_at_commas)] = Field(
        (), description="folders of more suites"
    )
    memory_bytes: Bytes = Field(4 * 2**30, description="memory limit of one worker")
    call_timeout_s: Positive = Field(20.0, description="limit for one call of a candidate in seconds")
    build_timeout_s: Positive = Field(60.0, description="limit for building one candidate in seconds")
    capture_timeout_s: Positive = Field(120.0, description="limit for capturing a reference in seconds")
    looks: Annotated[tuple[Count, ...], BeforeValidator(split_at_commas)] = Field(
        (12, 24, 48, 96), description="numbers of window pairs after which the search interval is read"
    )
    target_half_width: Ratio = Field(0.02, description="half-width of an interval that ends timing, as a log-ratio")
    noise_bound: Ratio = Field(
        0.014, description="what a confirmation's lower bound must clear to be called faster, ratio minus one"
    )
    search_noise_bound: Ratio = Field(
        0.03, description="the same for the search, whose one process pair cannot see what differs between processes"
    )
    race_noise_bound: Ratio = Field(
        0.01, description="what a candidate's lower bound must clear to be faster than another one, ratio minus one"
    )
    race_pairs: Count = Field(96, description="window pairs after which two candidates that are close count as equal")
    window_ms: Positive = Field(5.0, description="least length of a timing window in milliseconds")
    pool_bytes: Bytes = Field(256 * 2**20, description="shared memory for input slots")
    confirm_pairs: Annotated[int, BeforeValidator(number), Field(ge=4, le=20)] = Field(
        4, description="process pairs of a confirmation"
    )
    confirm_max_pairs: Annotated[int, BeforeValidator(number), Field(ge=4, le=20)] = Field(
        20, description="most process pairs of a confirmation"
    )
    check_trials: Count = Field(11, description="fresh-data trials of a correctness check")
    race_check: Literal["auto", "always", "never"] = Field(
        "auto", description="whether C++ kernels with OpenMP are searched for data races; always: each time anew"
    )
    own_kernels: Literal["auto", "any", "some", "strict"] = Field(
        "auto",
        description="how much of the work own kernels do: strict: nearly all of it; some: a part; any: none is needed; "
        "auto: any for one's own modules and files, some for suites, benches, submissions and rewards",
    )
    allow_precision: Annotated[tuple[Literal["tf32", "bfloat16", "float16"], ...], BeforeValidator(split_at_commas)] = (
        Field((), description="lower precisions that candidates may use inside float32; what uses them is labelled so")
    )

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("baselines")
    @classmethod
    def _baselines_are_named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError("name at least one baseline, each once")
        return value

    @field_validator("looks")
    @classmethod
    def _looks_increase(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or any(later <= earlier for earlier, later in itertools.pairwise(value)):
            raise ValueError("the numbers must increase, for example 12,24,48,96")
        return value

    @field_validator("confirm_max_pairs")
    @classmethod
    def _bounds_in_order(cls, value: int, info: ValidationInfo) -> int:
        least = info.data.get("confirm_pairs", 4)
        if value < least:
            raise ValueError(f"must be at least confirm_pairs, which is {least}")
        return value

    @classmethod
    def load(
        cls,
        flags: Mapping[str, Any] | None = None,
        config_file: Path | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        overrides: Sequence[str] = (),
    ) -> Settings:
        """Merge all sources.

        Args:
            flags: values of the command line by setting name; None and empty tuples mean "not given".
            config_file: an explicit TOML file, which must exist; without it ``cwd/kernelwright.toml`` if there is one.
            env: the environment (default: this process's).
            cwd: base of relative paths in flags and variables; those in a file are relative to the file.
            overrides: ``NAME=VALUE`` texts of ``--set``; the last one of a name wins, also over the name's flag.

        Raises:
            UsageError: an unknown name or a bad value; says where it stood, and names near it.
        """
        env = os.environ if env is None else env
        cwd = Path.cwd() if cwd is None else cwd.absolute()
        merged: dict[str, _Given] = {
            "store": _Given(_default_store(env), "default", cwd),
            "cache_dir": _Given(_default_cache_dir(env), "default", cwd),
        }
        for given in (
            _from_file(config_file, cwd),
            _from_env(env, cwd),
            _from_flags(flags or {}, cwd),
            _from_overrides(overrides, cwd),
        ):
            merged.update(given)
        return _build(merged, _home(env))

    def with_values(self, origin: str = "flag", **changes: Any) -> Settings:
        """A copy with some values changed and validated again; raises UsageError like :meth:`load`."""
        _refuse_unknown(changes, origin)
        given = {name: _Given(getattr(self, name), self.origin(name), Path.cwd()) for name in type(self).model_fields}
        given |= {name: _Given(value, origin, Path.cwd()) for name, value in changes.items()}
        return _build(given, _home(os.environ))

    def own_kernels_for(self, problem: Problem) -> OwnKernels:
        """How much of the work a candidate's own kernels have to do on a problem."""
        if self.own_kernels == "auto":
            return "any" if problem.suite in OWN_SUITES else "some"
        return self.own_kernels

    def for_boards(self) -> Settings:
        """A copy for what ranks or pays kernels: unless told otherwise, libraries alone win nothing, on any problem."""
        return self if self.own_kernels != "auto" else self.with_values("a contest of kernels", own_kernels="some")

    def origin(self, name: str) -> str:
        """Where the value of ``name`` came from."""
        return self._origins.get(name, "flag" if name in self.model_fields_set else "default")

    def describe(self) -> dict[str, SettingValue]:
        """Every setting by name, in declaration order: its value as JSON can hold it, and its origin."""
        values = self.model_dump(mode="json")
        return {name: SettingValue(values[name], self.origin(name)) for name in type(self).model_fields}


class _Given(NamedTuple):
    value: Any
    origin: str
    base: Path  # what relative paths are relative to


def _from_file(config_file: Path | None, cwd: Path) -> dict[str, _Given]:
    path = cwd / (CONFIG_FILE_NAME if config_file is None else config_file)
    if config_file is None and not path.exists():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read the configuration file {path}: {error.strerror}",
            hint="give --config the path of a readable TOML file",
            file=str(path),
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is no valid TOML: {error}", hint="mend the file", file=str(path)) from error
    _refuse_unknown(table, f"file {path}")
    if config_file is None and (places := sorted(KEYS_GO_TO & set(table))):
        raise UsageError(
            f"{places[0]} is not taken from {path}, which merely lies in the working folder: keys are sent there",
            hint=f"set {ENV_PREFIX}{places[0].upper()}, or name the file with --config",
            key=places[0],
            file=str(path),
        )
    return {name: _Given(value, f"file {path}", path.parent) for name, value in table.items()}


def _from_env(env: Mapping[str, str], cwd: Path) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for name in Settings.model_fields:
        variables = [ENV_PREFIX + name.upper(), *([ALIASES[name]] if name in ALIASES else [])]
        if variable := next((variable for variable in variables if env.get(variable)), None):
            found[name] = _Given(env[variable], f"env {variable}", cwd)
    return found


def _from_flags(flags: Mapping[str, Any], cwd: Path) -> dict[str, _Given]:
    _refuse_unknown(flags, "flag")
    return {
        name: _Given(value, "flag", cwd) for name, value in flags.items() if value is not None and value not in ((), [])
    }


def _from_overrides(overrides: Sequence[str], cwd: Path) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UsageError(f"--set wants NAME=VALUE, not {text!r}", hint="for example --set threads=2")
        _refuse_unknown([name], "flag --set")
        found[name] = _Given(value.strip(), "flag --set", cwd)
    return found


def _refuse_unknown(names: Iterable[str], origin: str) -> None:
    for name in names:
        if name not in Settings.model_fields:
            near = difflib.get_close_matches(name, Settings.model_fields, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else "'kernelwright config show' lists the settings"
            raise UsageError(f"unknown setting {name!r} in {origin}", hint=hint, key=name, origin=origin, near=near)


def _build(given: Mapping[str, _Given], home: Path) -> Settings:
    values = {name: _with_base(name, item, home) for name, item in given.items()}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _usage_error(error, given) from error
    settings._origins.update(
        {name: given[name].origin if name in given else "default" for name in Settings.model_fields}
    )
    return settings


def _with_base(name: str, given: _Given, home: Path) -> Any:
    """Make the paths among the settings absolute; whatever is no path is left to validation."""
    if name in _PATH_FIELDS and isinstance(given.value, str | Path) and optional(str(given.value)) is not None:
        return _absolute(given.value, given.base, home)
    if name in _PATH_TUPLES:
        parts = split_at_commas(given.value)
        if isinstance(parts, list | tuple) and all(isinstance(part, str | Path) for part in parts):
            return tuple(_absolute(part, given.base, home) for part in parts)
    return given.value


def _absolute(path: str | Path, base: Path, home: Path) -> Path:
    text = str(path)
    if text == "~" or text.startswith("~/"):
        return home / text[2:]
    return base / text


def _usage_error(error: ValidationError, given: Mapping[str, _Given]) -> UsageError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    item = given.get(name)
    origin = item.origin if item else "default"
    message = first["msg"].removeprefix("Value error, ")
    value = re.sub(r"//.*@", "//***@", first["input"]) if isinstance(first["input"], str) else first["input"]
    near: list[str] = []
    choices = [str(choice) for choice in get_args(Settings.model_fields[name].annotation)] if item else []
    if first["type"] == "literal_error":
        near = difflib.get_close_matches(str(value), choices, n=1)
    return UsageError(
        f"bad value {value!r} for setting {name!r} in {origin}: {message}",
        hint=f"did you mean {near[0]}?" if near else f"change {name} there",
        key=name,
        origin=origin,
        near=near,
    )
