"""A mistake in a spec as one line: where it is, what is wrong, the way out."""

from __future__ import annotations

import difflib
import typing

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from dpdask.spec.fields import Section
from dpdask.spec.registry import UNKNOWN_NAME, SectionRegistry

__all__ = ["describe_mistake"]

_PLAIN_TYPES = {"int", "float", "str", "bool"}


def describe_mistake(error: ValidationError, model: type[BaseModel], content: object) -> str:
    """Return one line for the first problem of ``error``.

    An unknown key comes first, because a misspelled key also explains what is missing.

    Args:
        error: What pydantic raised.
        model: The spec that was parsed into.
        content: The raw content.

    Returns:
        The place, the problem and a way out. Values are not repeated, since one may be a secret.
    """
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    unknown_keys = [problem for problem in problems if problem["type"] == "extra_forbidden"]
    problem = (unknown_keys or problems)[0]
    place = _keys(problem["loc"])
    key = ".".join(place) or "spec"
    others = _others(place, [_keys(each["loc"]) for each in problems])
    if problem["type"] == "extra_forbidden":
        hint = _suggest_key(place[-1], _known_keys(place[:-1], model, content))
        return f"{key} is not a valid key of the spec; {hint}{others}"
    if problem["type"] == "missing":
        return f"{key} is missing; add it{others}"
    if problem["type"] == UNKNOWN_NAME:
        return f"{key}.name is {problem['msg']}{others}"
    if problem["type"] == "model_type":
        known = ", ".join(sorted(_known_keys(place, model, content)))
        return f"{key} is not a mapping; write {{key: value}}, of the keys {known}{others}"
    message = problem["msg"].removeprefix("Value error, ").replace(" after validation", "")
    return f"{key}: {message[0].lower()}{message[1:]}{others}"


def _keys(location: tuple[int | str, ...]) -> list[str]:
    """Return the keys of a place, without the names of alternatives that pydantic tried there."""
    alternatives = _PLAIN_TYPES | _names_of_sections(Section)
    parts = [str(part) for part in location]
    return [part for part in parts if "[" not in part and part not in alternatives]


def _names_of_sections(base: type[BaseModel]) -> set[str]:
    nested = [_names_of_sections(section) for section in base.__subclasses__()]
    return {base.__name__}.union(*nested)


def _others(place: list[str], places: list[list[str]]) -> str:
    """Return how many further places are wrong; a part of this place is not another one."""
    others = {tuple(each) for each in places if each != place[: len(each)]}
    return f" (and {len(others)} more)" if others else ""


def _suggest_key(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"


def _known_keys(place: list[str], model: type[BaseModel], content: object) -> list[str]:
    """Return the keys of the section that ``place`` leads to."""
    for part in place:
        content = content.get(part) if isinstance(content, dict) else None
        field = model.model_fields.get(part)
        if field is not None:
            model = _section_of(field, content) or model
    return [field.alias or name for name, field in model.model_fields.items()]


def _section_of(field: FieldInfo, content: object) -> type[BaseModel] | None:
    """Return the section under a key, None where there could be several."""
    for metadata in field.metadata:
        if isinstance(metadata, SectionRegistry):
            return metadata.section_of(content)
    sections = list(dict.fromkeys(_models_in(field.annotation)))
    return sections[0] if len(sections) == 1 else None


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in typing.get_args(annotation) for model in _models_in(inner)]
