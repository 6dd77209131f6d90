"""People: what ``privacy_unit.ids`` needs, and what it goes with."""

from __future__ import annotations

from dpdask.errors import InvalidSensitivity
from dpdask.queries import People
from dpdask.spec.query import QuerySection
from dpdask.spec.release import PrivacyUnitSection

__all__ = ["people_of"]


def people_of(unit: PrivacyUnitSection, section: QuerySection) -> People | None:
    """Return who the privacy units are, None where records are.

    Args:
        unit: The section ``privacy_unit``.
        section: The section ``query``.

    Raises:
        InvalidSensitivity: A key is missing, or does not go with ids or the query.
    """
    query = section.name
    if unit.ids is None:
        for key in ("missing_ids", "name", "max_cells", "clip"):
            if getattr(unit, key) is not None:
                raise InvalidSensitivity(
                    f"privacy_unit.{key} is about people whom ids tell apart; name the array of"
                    " ids, privacy_unit.ids, or drop it"
                )
        return None
    _check_query(section)
    if unit.record_dim is None:
        raise InvalidSensitivity(
            "privacy_unit.ids has one id per record; name the dimension along which records lie:"
            " privacy_unit.record_dim"
        )
    if unit.per is not None:
        raise InvalidSensitivity(
            "privacy_unit.per says that a unit has one index, and a person whom ids tell may have"
            " records at many; drop one of them"
        )
    distinct = unit.max_cells is not None
    if distinct and query != "histogram":
        raise InvalidSensitivity(
            f"privacy_unit.max_cells is about the cells of a histogram; for query {query} give"
            " privacy_unit.max_contributions"
        )
    if distinct and "max_contributions" in unit.model_fields_set:
        raise InvalidSensitivity(
            "privacy_unit.max_cells and max_contributions are both there; give one of them"
        )
    clipped = unit.clip == "person"
    if clipped:
        _check_clip(unit, section)
    limited = distinct or "max_contributions" in unit.model_fields_set
    if not limited and not clipped:
        raise InvalidSensitivity(
            "privacy_unit.ids keeps at most max_contributions records of a person, and leaves the"
            " others out; give privacy_unit.max_contributions, or clip: person with l2_clip_norm"
        )
    return People(
        ids=unit.ids,
        name=unit.name or unit.ids,
        missing=unit.missing_ids or "drop",
        distinct=distinct,
        clipped=clipped,
        limited=limited,
    )


def _check_clip(unit: PrivacyUnitSection, section: QuerySection) -> None:
    """Refuse to clip all records of a person together where nothing is clipped."""
    if not section.takes_clip_of_person:
        raise InvalidSensitivity(
            f"query {section.name} has no clip norm that could bound all records of a person; drop"
            " privacy_unit.clip"
        )
    if unit.l2_clip_norm is None:
        raise InvalidSensitivity(
            "privacy_unit.clip: person is about l2_clip_norm, which then bounds all records of a"
            " person together; give privacy_unit.l2_clip_norm, or drop clip"
        )


def _check_query(section: QuerySection) -> None:
    """Refuse a query that would count records which ids leave out."""
    if section.name == "precomputed":
        raise InvalidSensitivity(
            "a precomputed result has no records any more, whose ids could be read; drop"
            " privacy_unit.ids"
        )
    if not section.takes_ids:
        raise InvalidSensitivity(
            f"query {section.name} does not leave out the records that privacy_unit.ids"
            " would leave out; use another query, or declare max_contributions without ids"
        )
