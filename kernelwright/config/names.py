"""Names of settings, such as ``threads``, ``recipe.samples`` and ``coder.parameters``; hints for mistyped ones.

A setting of a table is named with a dot. Where no dot can stand, as in a variable of the environment or a keyword of
Python, an underscore takes its place: ``KERNELWRIGHT_OPENAI_BASE_URL``, ``recipe_samples=3``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kernelwright.config.measurement import Measurement
from kernelwright.config.tables import Recipe, Table
from kernelwright.errors import UsageError

# Settings of earlier versions, in the records of runs.
_ONCE = {
    "llm_concurrency": ("openai.concurrency", "anthropic.concurrency"),
    "llm_tries": ("openai.tries", "anthropic.tries"),
    "llm_timeout_s": ("openai.timeout_s", "anthropic.timeout_s"),
    **{name: (f"measurement.{name}",) for name in Measurement.model_fields},
    **{name: (f"recipe.{name}",) for name in Recipe.model_fields if name != Recipe.main},
}


class Named(NamedTuple):
    """One setting: where it stands, what it means, and its default (None for one that depends on the user)."""

    path: tuple[str, ...]
    description: str
    default: Any
    choices: tuple[str, ...]


class SettingNames:
    """The names of a model's settings, in the order of their declaration."""

    def __init__(self, model: type[BaseModel]) -> None:
        self._all = dict(_named(model))
        self._other_forms = {other: name for name, item in self._all.items() for other in _other_forms(name, item.path)}
        self._tables = {name for name, field in model.model_fields.items() if _table_of(field) is not None}

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __contains__(self, name: object) -> bool:
        return name in self._all

    def __getitem__(self, name: str) -> Named:
        return self._all[name]

    @property
    def old(self) -> tuple[str, ...]:
        """Names of earlier versions that are none today."""
        return tuple(name for name in _ONCE if self.find(name) is None)

    def find(self, name: str) -> str | None:
        """The name of a setting, from any form of it; None for what is no setting."""
        return name if name in self._all else self._other_forms.get(name)

    def known(self, name: str, origin: str) -> str:
        """As :meth:`find`.

        Raises:
            UsageError: there is no such setting. The message says ``origin``, and names that come near.
        """
        found = self.find(name)
        if found is not None:
            return found
        hint = self.hint(name) or "'kernelwright config show' lists the settings"
        near = self.near(name)
        raise UsageError(f"unknown setting {name!r} in {origin}", hint=hint, key=name, origin=origin, near=near)

    def hint(self, name: str) -> str:
        """What to write instead of a name that is no setting; empty where nothing comes near it."""
        part = name.rpartition(".")[2]
        if part in Measurement.model_fields:
            return f"{part} is part of the method: set measurement=quick, or {part} in [measurement] of a file"
        near = self.near(name)
        return f"did you mean {' or '.join(near)}?" if near else ""

    def near(self, name: str) -> list[str]:
        """At most three settings that a mistyped name may have meant, the likeliest first."""
        last = name.rpartition(".")[2]
        ends = {known.rpartition(".")[2]: known for known in self._all}
        found = [known for known in _ONCE.get(name, ()) if known in self._all]
        found += [known for known in self._all if known.endswith(f".{last}")]
        found += difflib.get_close_matches(name, self._all, n=3)
        found += [ends[end] for end in difflib.get_close_matches(last, ends, n=3, cutoff=0.75)]
        return list(dict.fromkeys(found))[:3]

    def flat(self, values: Mapping[str, Any], origin: str) -> dict[str, Any]:
        """Values by the names of settings; tables and mappings that stand for tables are taken apart.

        Raises:
            UsageError: as :meth:`known`.
        """
        found: dict[str, Any] = {}
        for name, value in values.items():
            if name in self._tables and isinstance(value, Mapping | Table):
                parts = (
                    value
                    if isinstance(value, Mapping)
                    else {key: getattr(value, key) for key in value.model_fields_set}
                )
                found |= {self.known(f"{name}.{part}", origin): inner for part, inner in parts.items()}
            else:
                found[self.known(name, origin)] = value
        return found

    def nested(self, flat: Mapping[str, Any]) -> dict[str, Any]:
        """What :meth:`flat` took apart, as the model has it; a table of which a part is given has all its parts."""
        made: dict[str, Any] = {}
        given = {self._all[name].path[0] for name in flat}
        for name, item in self._all.items():
            first, *rest = item.path
            if not rest and name in flat:
                made[first] = flat[name]
            elif rest and first in given:
                made.setdefault(first, {})[rest[0]] = flat.get(name, item.default)
        return made

    def of_place(self, place: tuple[int | str, ...]) -> str:
        """The setting at a place that pydantic names."""
        return next((name for name, item in self._all.items() if place[: len(item.path)] == item.path), str(place[0]))

    def recorded(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Settings in a run's record, of this version or an earlier one, by name; also ``measurement.looks`` and so on.

        Values are as JSON has them. A name that means nothing today is left out.
        """
        found: dict[str, Any] = {}
        for name, value in values.items():
            if name == "measurement":
                found |= {f"measurement.{part}": inner for part, inner in dict(value).items()}
            elif name in self._tables and isinstance(value, Mapping):
                known = {self.find(f"{name}.{part}"): inner for part, inner in value.items()}
                found |= {part: inner for part, inner in known.items() if part is not None}
            elif name in _ONCE:
                found |= dict.fromkeys(_ONCE[name], value)
            elif (now := self.find(name)) is not None:
                found[now] = value
        return found


def _named(model: type[BaseModel]) -> Iterator[tuple[str, Named]]:
    for name, field in model.model_fields.items():
        table = _table_of(field)
        if table is None:
            default = None if field.default_factory is not None else field.default
            yield name, Named((name,), field.description or "", default, _choices(field))
            continue
        for part, inner in table.model_fields.items():
            default = getattr(field.default, part)
            if part == table.main:
                yield name, Named((name, part), field.description or "", default, _choices(inner))
            else:
                yield f"{name}.{part}", Named((name, part), inner.description or "", default, _choices(inner))


def _table_of(field: FieldInfo) -> type[Table] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Table) else None


def _choices(field: FieldInfo) -> tuple[str, ...]:
    return tuple(map(str, get_args(field.annotation)))


def _other_forms(name: str, path: tuple[str, ...]) -> set[str]:
    return {".".join(path), "_".join(path), name.replace(".", "_")} - {name}
