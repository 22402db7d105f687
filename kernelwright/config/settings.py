"""Configuration: one frozen :class:`Settings` object, built once and passed on.

Names of settings are those of :mod:`kernelwright.config.names`.

Precedence, highest first: a flag of the command line (``--set NAME=VALUE`` included), a ``KERNELWRIGHT_NAME``
variable, the TOML file (``--config FILE``, else ``kernelwright.toml`` in the working directory), the default. This is
the only module that reads settings from the environment.
"""

from __future__ import annotations

import difflib
import functools
import operator
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
)

from kernelwright.config.environment import ENV_PREFIX
from kernelwright.config.measurement import Measurement
from kernelwright.config.names import SettingNames
from kernelwright.config.tables import Endpoint, Recipe, Role
from kernelwright.config.values import (
    Bytes,
    Count,
    FilePath,
    Names,
    Positive,
    Word,
    number_or_auto,
    optional,
    split_at_commas,
)
from kernelwright.errors import UsageError
from kernelwright.records import Backend, Problem
from kernelwright.records.problems import OwnKernels

__all__ = ["CAPTURED", "CONFIG_FILE_NAME", "NAMES", "SettingValue", "Settings"]

CONFIG_FILE_NAME = "kernelwright.toml"
# Variables of others that are read where our own is not set.
ALIASES = {
    "openai.base_url": "OPENAI_BASE_URL",
    "anthropic.base_url": "ANTHROPIC_BASE_URL",
    "suite_dirs": "KERNELWRIGHT_SUITES",
}

KEYS_GO_TO = frozenset({"openai.base_url", "anthropic.base_url"})  # settings that say where keys are sent
PLACES = frozenset({"store", "cache_dir"})  # of this machine and user, whichever run is resumed

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
    device: Literal["auto", "none"] = Field("auto", description="accelerator for Triton and CUDA; none: leave it alone")
    backend: Backend = Field("cpp", description="language of new kernels")
    pool: Word = Field(
        "local", description="where candidates are judged: local, ray, ray:ADDRESS, ray:ADDRESS#RESOURCE, or spool:DIR"
    )
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
    parallel_problems: Annotated[Literal["auto"] | Count, BeforeValidator(number_or_auto)] = Field(
        "auto",
        description="problems worked on side by side; auto: 1, 8 with a model that others run or a pool, or more for "
        "many seats",
    )
    max_output_tokens: Count = Field(16000, description="longest reply of a model in tokens, its reasoning included")
    replies: Literal["reuse", "fresh"] = Field(
        "reuse", description="reuse: replies to equal questions are taken from the store; fresh: of this run only"
    )
    prices: Annotated[Path | None, BeforeValidator(optional)] = Field(
        None, description="TOML file with prices of models, over the built-in table"
    )
    mailbox_minutes: Annotated[Annotated[float, Field(ge=0, allow_inf_nan=False)] | None, BeforeValidator(optional)] = (
        Field(
            None,
            description="how long a run waits for replies in a mailbox, or for a spool, before it pauses; "
            "none for as long as needed",
        )
    )
    coder: Role = Field(Role(model="offline"), description="who writes kernels")
    models: Annotated[tuple[Word, ...], BeforeValidator(split_at_commas)] = Field(
        (), description="further models that write kernels; a search draws among them and the coder's"
    )
    judge: Role = Field(Role(model="offline"), description="who gives advice")
    tester: Role = Field(
        Role(model="offline"), description="who proposes inputs for a problem's archive besides the search"
    )
    verifier: Role = Field(
        Role(model="none"), description="who predicts failures before a candidate is judged; none: nobody"
    )
    openai: Endpoint = Field(
        Endpoint(base_url="https://api.openai.com/v1"),
        description="where openai:MODEL is asked; any server of chat completions",
    )
    anthropic: Endpoint = Field(
        Endpoint(base_url="https://api.anthropic.com"),
        description="where anthropic:MODEL is asked; any server of messages",
    )
    recipe: Recipe = Field(Recipe(), description="search recipe")
    suite_dirs: Annotated[tuple[Path, ...], BeforeValidator(split_at_commas)] = Field(
        (), description="folders of more suites"
    )
    memory_bytes: Bytes = Field(4 * 2**30, description="memory limit of one worker")
    call_timeout_s: Positive = Field(20.0, description="limit for one call of a candidate in seconds")
    build_timeout_s: Positive = Field(60.0, description="limit for building one candidate in seconds")
    capture_timeout_s: Positive = Field(120.0, description="limit for capturing a reference in seconds")
    measurement: Measurement = Field(
        Measurement(), description="how kernels are checked and timed: standard; quick: wider intervals in less time"
    )
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

    def __init__(self, **values: Any) -> None:
        given = NAMES.flat(values, "the arguments")
        super().__init__(**NAMES.nested(given))
        self._origins.update(dict.fromkeys(given, "flag"))

    @field_validator("baselines")
    @classmethod
    def _baselines_are_named_once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or len(set(value)) != len(value):
            raise ValueError("name at least one baseline, each once")
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
        given = {name: _Given(self.value(name), self.origin(name), Path.cwd()) for name in NAMES}
        given |= {name: _Given(value, origin, Path.cwd()) for name, value in NAMES.flat(changes, origin).items()}
        return _build(given, _home(os.environ))

    def as_recorded(self, origin: str, recorded: Mapping[str, Any]) -> Settings:
        """A copy with the settings of a run's record, but with the places (store and cache) that this one has.

        Args:
            recorded: :meth:`model_dump` of the run's settings, of this version or an earlier one.

        Raises:
            UsageError: a recorded value is not valid today.
        """
        known = NAMES.recorded(recorded)
        method = {
            name: known[f"measurement.{name}"] for name in Measurement.model_fields if f"measurement.{name}" in known
        }
        mine = PLACES | ({"pool"} if self.origin("pool") != "default" else set())
        kept = {name: value for name, value in known.items() if name in NAMES and name not in mine}
        return self.with_values(origin, measurement={**self.measurement.model_dump(), **method}, **kept)

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
        return self._origins.get(NAMES.known(name, "a question for its origin"), "default")

    def value(self, name: str) -> Any:
        """The value of a setting by its name, such as ``recipe.samples``."""
        return functools.reduce(getattr, NAMES[NAMES.known(name, "a question for its value")].path, self)

    def describe(self) -> dict[str, SettingValue]:
        """Every setting by name, in declaration order: its value as JSON can hold it, and its origin."""
        values = self.model_dump(mode="json")
        if (name := self.measurement.name) != "custom":
            values["measurement"] = name
        found = {name: functools.reduce(operator.getitem, NAMES[name].path, values) for name in NAMES}
        return {name: SettingValue(value, self.origin(name)) for name, value in found.items()}


NAMES = SettingNames(Settings)


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
    found = NAMES.flat(table, f"file {path}")
    if config_file is None and (places := sorted(KEYS_GO_TO & set(found))):
        raise UsageError(
            f"{places[0]} is not taken from {path}, which merely lies in the working folder: keys are sent there",
            hint=f"set {_variable(places[0])}, or name the file with --config",
            key=places[0],
            file=str(path),
        )
    return {name: _Given(value, f"file {path}", path.parent) for name, value in found.items()}


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper().replace(".", "_")


def _from_env(env: Mapping[str, str], cwd: Path) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for former in NAMES.old:
        if env.get(_variable(former)):
            NAMES.known(former, f"env {_variable(former)}")
    for name in NAMES:
        variables = [_variable(name), *([ALIASES[name]] if name in ALIASES else [])]
        if variable := next((variable for variable in variables if env.get(variable)), None):
            found[name] = _Given(env[variable], f"env {variable}", cwd)
    return found


def _from_flags(flags: Mapping[str, Any], cwd: Path) -> dict[str, _Given]:
    given = {name: value for name, value in flags.items() if value is not None and value not in ((), [])}
    return {name: _Given(value, "flag", cwd) for name, value in NAMES.flat(given, "flag").items()}


def _from_overrides(overrides: Sequence[str], cwd: Path) -> dict[str, _Given]:
    found: dict[str, _Given] = {}
    for text in overrides:
        name, equals, value = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or not name:
            raise UsageError(f"--set wants NAME=VALUE, not {text!r}", hint="for example --set threads=2")
        found[NAMES.known(name, "flag --set")] = _Given(value.strip(), "flag --set", cwd)
    return found


def _build(given: Mapping[str, _Given], home: Path) -> Settings:
    values = {name: _with_base(name, item, home) for name, item in given.items()}
    try:
        settings = Settings(**values)
    except ValidationError as error:
        raise _usage_error(error, given) from error
    settings._origins.update({name: given[name].origin if name in given else "default" for name in NAMES})
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
    name = NAMES.of_place(first["loc"])
    item = given.get(name)
    origin = item.origin if item else "default"
    message = first["msg"].removeprefix("Value error, ")
    value = re.sub(r"//.*@", "//***@", first["input"]) if isinstance(first["input"], str) else first["input"]
    near: list[str] = []
    if first["type"] == "literal_error" and item:
        near = difflib.get_close_matches(str(value), NAMES[name].choices, n=1)
    return UsageError(
        f"bad value {value!r} for setting {name!r} in {origin}: {message}",
        hint=f"did you mean {near[0]}?" if near else f"change {name} there",
        key=name,
        origin=origin,
        near=near,
    )
