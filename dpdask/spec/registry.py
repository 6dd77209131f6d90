"""Sections that are chosen by name: a registry that is also a pydantic type."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Generic, TypeVar, Union

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from dpdask.errors import InvalidSpec
from dpdask.spec.fields import Section

__all__ = ["UNKNOWN_NAME", "NamedSection", "SectionRegistry"]

UNKNOWN_NAME = "unknown_name"
"""The pydantic error type of a section whose name is not registered."""


class NamedSection(Section):
    """A section that is chosen by its ``name``; subclasses narrow it to one literal."""

    name: str


_Base = TypeVar("_Base", bound=NamedSection)
_Class = TypeVar("_Class", bound=NamedSection)


class SectionRegistry(Generic[_Base]):
    """The sections that may stand under one key of a spec, by name.

    ``Annotated[BaseSection, registry]`` is the type of such a key. It accepts a mapping with a
    registered ``name``, or that name alone as its short form. Sections are looked up when a spec is
    parsed, so one that is registered later works in every model. Names are read without regard to
    case, and with blanks or underscores for hyphens.

    Args:
        kind: What the sections are called in errors.
        base: The class that they derive from.
        aliases: Other names that people know sections by, and the names that they stand for.
        meanings: Parts of names that are neither, and the names that whoever writes them may mean.
    """

    def __init__(
        self,
        kind: str,
        base: type[_Base],
        *,
        aliases: Mapping[str, str] = MappingProxyType({}),
        meanings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.kind = kind
        self._base = base
        self._sections: dict[str, type[_Base]] = {}
        self._aliases, self._meanings = dict(aliases), dict(meanings)

    def register(self, section: type[_Class]) -> type[_Class]:
        """Add a section under its literal name; usable as a class decorator. Idempotent."""
        name = _literal_name(section)
        checked = self._check(section)
        if self._sections.setdefault(name, checked) is not checked:
            raise InvalidSpec(
                f"{self.kind} {name!r} is registered already; choose another name, or unregister"
                " the other section first"
            )
        return section

    def _check(self, section: type[NamedSection]) -> type[_Base]:
        if issubclass(section, self._base):
            return section
        raise InvalidSpec(
            f"{section.__name__} is not a valid {self.kind} section; derive it from"
            f" {self._base.__name__}"
        )

    def unregister(self, section: type[_Base]) -> None:
        """Remove a section. Idempotent."""
        self._sections.pop(_literal_name(section), None)

    def __getitem__(self, name: str) -> type[_Base]:
        return self._sections[name]

    def __contains__(self, name: object) -> bool:
        return name in self._sections

    def __iter__(self) -> Iterator[str]:
        return iter(self._sections)

    def resolve(self, name: str) -> str:
        """Return the registered name that ``name`` stands for; itself where it stands for none."""
        if name in self._sections:
            return name
        plain = _plain(name)
        known = self._aliases.get(plain, plain)
        return known if known in self._sections else name

    def aliases_of(self, name: str) -> list[str]:
        """Return the other names of a section."""
        return [alias for alias, known in self._aliases.items() if known == name]

    def section_of(self, content: object) -> type[_Base] | None:
        """Return the section that raw ``content`` names, None where it names none."""
        name = content.get("name") if isinstance(content, dict) else content
        return self._sections.get(self.resolve(name)) if isinstance(name, str) else None

    def _validate(self, content: object) -> _Base:
        if isinstance(content, self._base):
            return content
        section = self.section_of(content)
        if section is None:
            raise PydanticCustomError(UNKNOWN_NAME, "{advice}", {"advice": self._advice(content)})
        others = content if isinstance(content, dict) else {}
        return section.model_validate({**others, "name": _literal_name(section)})

    def _advice(self, content: object) -> str:
        name = content.get("name") if isinstance(content, dict) else content
        close = self._suggest(_plain(str(name)))
        hint = "" if close is None else f"did you mean {close!r}? "
        return f"not a valid {self.kind}; {hint}choose one of {', '.join(self._sections)}"

    def _suggest(self, name: str) -> str | None:
        """Return the section that a name is nearly that of, or whose meaning it has a part of."""
        names = {alias: known for alias, known in self._aliases.items() if known in self._sections}
        names |= {own: own for own in self._sections}
        meant = (known for part, known in self._meanings.items() if part in name)
        for close in (
            *difflib.get_close_matches(name, list(names), n=1, cutoff=0.8),
            *meant,
            *difflib.get_close_matches(name, list(names), n=1),
        ):
            known = names.get(close)
            if known is not None:
                return known
        return None

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        sections = Union[tuple(self._sections.values())]  # type: ignore[valid-type]  # noqa: UP007
        discriminated: Any = Annotated[sections, Field(discriminator="name")]
        named: TypeAdapter[_Base] = TypeAdapter(discriminated)
        short = [name for name, section in self._sections.items() if _needs_only_a_name(section)]
        return {"anyOf": [handler(named.core_schema), {"type": "string", "enum": short}]}


def _plain(name: str) -> str:
    """Return a name in lower case, its words joined by hyphens."""
    return "-".join(name.lower().replace("_", " ").replace("-", " ").split())


def _literal_name(section: type[NamedSection]) -> str:
    names = typing.get_args(section.model_fields["name"].annotation)
    if len(names) != 1 or not isinstance(names[0], str):
        raise InvalidSpec(
            f"{section.__name__}.name is not a single literal; write name: Literal['...']"
        )
    return names[0]


def _needs_only_a_name(section: type[NamedSection]) -> bool:
    return not any(
        field.is_required() for name, field in section.model_fields.items() if name != "name"
    )
