"""Reading specs: YAML or JSON to plain data to a validated spec; every mistake is one line with the
way out.
"""

from __future__ import annotations

import difflib
import json
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from dpdask.errors import InvalidSpec
from dpdask.spec.calibration import MECHANISMS, CalibrationSpec
from dpdask.spec.release import QUERIES, ReleaseSpec
from dpdask.types import Json

__all__ = [
    "load_calibration_spec",
    "load_release_spec",
    "parse_calibration_spec",
    "parse_release_spec",
]

_Spec = TypeVar("_Spec", bound=BaseModel)
_TAGS: dict[str, dict[str, type[BaseModel]]] = {"mechanism": MECHANISMS, "query": QUERIES}


def load_calibration_spec(path: str | Path) -> CalibrationSpec:
    """Read a YAML or JSON file into a :class:`CalibrationSpec`."""
    return parse_calibration_spec(_read(path))


def load_release_spec(path: str | Path) -> ReleaseSpec:
    """Read a YAML or JSON file into a :class:`ReleaseSpec`."""
    return parse_release_spec(_read(path))


def parse_calibration_spec(content: Any) -> CalibrationSpec:
    """Validate plain data into a :class:`CalibrationSpec`."""
    return _parse(content, CalibrationSpec, "shape:, privacy:, sensitivity:, mechanism:")


def parse_release_spec(content: Any) -> ReleaseSpec:
    """Validate plain data into a :class:`ReleaseSpec`."""
    return _parse(
        content,
        ReleaseSpec,
        "source:, output:, privacy_unit:, query:, privacy:, mechanism:, budget:",
    )


def _read(path: str | Path) -> Any:
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidSpec(
            f"cannot read spec {str(path)!r}: {reason}; give the path of a YAML or JSON file"
        ) from None
    try:
        if str(path).endswith(".json"):
            return json.loads(text, object_pairs_hook=_without_duplicates)
        return yaml.load(text, _StrictLoader)  # a SafeLoader that also refuses duplicate keys
    except _DuplicateKey as duplicate:
        raise InvalidSpec(f"spec {str(path)!r} has {duplicate}; keep one of them") from None
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = where.line + 1 if where is not None else getattr(error, "lineno", "?")
        raise InvalidSpec(
            f"spec {str(path)!r} is not well-formed near line {line}; correct its YAML or JSON"
        ) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # a date that does not exist, a number of 5000 digits, endless nesting
        reason = (
            "is nested too deeply"
            if isinstance(error, RecursionError)
            else "holds a date or number that does not exist"
        )
        raise InvalidSpec(
            f"spec {str(path)!r} {reason}; correct it, or write it in quotes"
        ) from None


class _DuplicateKey(Exception):
    """A key that is there twice, of which one would silently win."""


class _StrictLoader(yaml.SafeLoader):
    """YAML without duplicate keys; a key may still override one that ``<<`` merges in."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        node: Any = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if (key.tag, key.value) in lines:
                    raise _DuplicateKey(
                        f"key {key.value!r} twice, on lines {lines[key.tag, key.value]} and {line}"
                    )
                lines[key.tag, key.value] = line
        return node


def _without_duplicates(pairs: list[tuple[str, Any]]) -> Json:
    """An object of JSON whose keys are all different."""
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateKey(f"key {key!r} twice in one object")
        found[key] = value
    return found


def _parse(content: Any, model: type[_Spec], sections: str) -> _Spec:
    if not isinstance(content, dict):
        raise InvalidSpec(f"the spec is not a mapping; write sections such as {sections}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InvalidSpec(_one_line(error, model, content)) from None


def _given(content: Any, place: list[str]) -> Any:
    """The name that was given where one of a table belongs."""
    for part in place:
        content = content.get(part) if isinstance(content, dict) else None
    return content.get("name") if isinstance(content, dict) else content


def _one_line(error: ValidationError, model: type[BaseModel], content: Any) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    unknown = [
        problem for problem in problems if problem["type"] == "extra_forbidden"
    ]  # a typo explains what is missing
    first = (unknown or problems)[0]
    tags = {tag for table in _TAGS.values() for tag in table}
    place = [str(part) for part in first["loc"] if str(part) not in tags and "[" not in str(part)]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    name = ".".join(place) or "spec"
    if first["type"] == "extra_forbidden":
        known = _known_keys(first["loc"][:-1], model)
        close = difflib.get_close_matches(place[-1], known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known keys: {', '.join(sorted(known))}"
        return f"{name} is no key of the spec; {hint}{more}"
    if first["type"] == "missing":
        return f"{name} is missing; add it{more}"
    if first["type"].startswith("union_tag"):
        table = _TAGS[place[0]]
        article = "a mechanism" if place[0] == "mechanism" else "a query"
        close = difflib.get_close_matches(str(_given(content, place)), list(table), n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        return f"{name}.name is not {article}; {hint}choose one of {', '.join(table)}{more}"
    message = first["msg"].removeprefix("Value error, ")
    return f"{name}: {message[0].lower()}{message[1:]}{more}"


def _known_keys(place: tuple[int | str, ...], model: type[BaseModel]) -> list[str]:
    """The keys of the section that ``place`` leads to."""
    for index, part in enumerate(place):
        if part in _TAGS.get(str(place[index - 1]), {}):
            model = _TAGS[str(place[index - 1])][str(part)]
        elif str(part) in model.model_fields:
            inner = _models_in(model.model_fields[str(part)].annotation)
            model = inner[0] if len(inner) == 1 else model
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for inner in typing.get_args(annotation) for found in _models_in(inner)]
