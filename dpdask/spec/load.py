"""Reading specs: from YAML or JSON to plain data to a validated spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from dpdask.errors import InvalidSpec
from dpdask.spec.calibration import CalibrationSpec
from dpdask.spec.mistakes import describe_mistake
from dpdask.spec.release import ReleaseSpec

__all__ = [
    "load_calibration_spec",
    "load_release_spec",
    "load_release_specs",
    "parse_calibration_spec",
    "parse_release_spec",
]

_Spec = TypeVar("_Spec", bound=BaseModel)


def load_calibration_spec(path: str | Path) -> CalibrationSpec:
    """Read a YAML or JSON file into a :class:`CalibrationSpec`."""
    return parse_calibration_spec(_read(path))


def load_release_spec(path: str | Path) -> ReleaseSpec:
    """Read a YAML or JSON file into a :class:`ReleaseSpec`."""
    return parse_release_spec(_read(path))


def load_release_specs(path: str | Path) -> list[ReleaseSpec]:
    """Read a YAML or JSON file that holds a list of release specs."""
    content = _read(path)
    if not isinstance(content, list):
        raise InvalidSpec(f"specs {str(path)!r} are not a list; write one spec after the other")
    specs = []
    for number, item in enumerate(content, 1):
        try:
            specs.append(parse_release_spec(item))
        except InvalidSpec as mistake:
            raise InvalidSpec(f"spec {number} of {len(content)}: {mistake}") from None
    return specs


def parse_calibration_spec(content: object) -> CalibrationSpec:
    """Validate plain data into a :class:`CalibrationSpec`."""
    return _parse(content, CalibrationSpec, "shape:, privacy:, sensitivity:, mechanism:")


def parse_release_spec(content: object) -> ReleaseSpec:
    """Validate plain data into a :class:`ReleaseSpec`."""
    return _parse(
        content,
        ReleaseSpec,
        "source:, output:, privacy_unit:, query:, privacy:, mechanism:, budget:",
    )


def _parse(content: object, model: type[_Spec], sections: str) -> _Spec:
    if not isinstance(content, dict):
        raise InvalidSpec(f"the spec is not a mapping; write sections such as {sections}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise InvalidSpec(describe_mistake(error, model, content)) from None


def _read(path: str | Path) -> object:
    text = _read_text(path)
    try:
        if str(path).endswith(".json"):
            return json.loads(text, object_pairs_hook=_object_without_duplicates)
        return yaml.load(text, _StrictLoader)  # a SafeLoader that also refuses duplicate keys
    except _DuplicateKey as duplicate:
        raise InvalidSpec(f"spec {str(path)!r} has {duplicate}; keep one of them") from None
    except (yaml.YAMLError, json.JSONDecodeError) as error:
        raise InvalidSpec(
            f"spec {str(path)!r} is not well-formed near line {_line_of(error)}; correct its YAML"
            " or JSON"
        ) from None
    except RecursionError:
        raise InvalidSpec(
            f"spec {str(path)!r} is nested too deeply; correct it, or write it in quotes"
        ) from None
    except ValueError:  # a date that does not exist, a number of 5000 digits
        raise InvalidSpec(
            f"spec {str(path)!r} holds a date or number that does not exist; correct it, or write"
            " it in quotes"
        ) from None


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        reason: str | None = "it is not UTF-8 text"
    except OSError as error:
        reason = error.strerror
    raise InvalidSpec(
        f"cannot read spec {str(path)!r}: {reason}; give the path of a YAML or JSON file"
    )


def _line_of(error: yaml.YAMLError | json.JSONDecodeError) -> int | str:
    if isinstance(error, json.JSONDecodeError):
        return error.lineno
    mark = getattr(error, "problem_mark", None)
    return "?" if mark is None else mark.line + 1


class _DuplicateKey(Exception):
    """A key that is there twice, one of which would win silently."""


class _StrictLoader(yaml.SafeLoader):
    """YAML without duplicate keys; a key may still override one that ``<<`` merges in."""

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
                continue
            line = key.start_mark.line + 1
            first = lines.get((key.tag, key.value))
            if first is not None:
                raise _DuplicateKey(f"key {key.value!r} twice, on lines {first} and {line}")
            lines[key.tag, key.value] = line
        return node


def _object_without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object whose keys are all different."""
    content: dict[str, object] = {}
    for key, value in pairs:
        if key in content:
            raise _DuplicateKey(f"key {key!r} twice in one object")
        content[key] = value
    return content
