"""People: what ``privacy_unit.ids`` needs, and what it goes with."""

from __future__ import annotations

from dpdask.errors import InvalidSensitivity
from dpdask.privacy import Adjacency
from dpdask.queries import People
from dpdask.spec.query import QuerySection
from dpdask.spec.release import PrivacyUnitSection

__all__ = ["people_of"]

_MOMENTS = ("second-moment", "covariance")


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
        for key in ("missing_ids", "name", "max_cells"):
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
    if not distinct and "max_contributions" not in unit.model_fields_set:
        raise InvalidSensitivity(
            "privacy_unit.ids keeps at most max_contributions records of a person, and leaves the"
            " others out; give privacy_unit.max_contributions"
        )
    if query in _MOMENTS and unit.adjacency is Adjacency.REPLACE_ONE:
        raise InvalidSensitivity(
            f"query {query} under replace-one divides by the number of records, and with"
            " privacy_unit.ids that of the kept ones is private; use privacy_unit.adjacency:"
            " add-remove-one"
        )
    return People(
        ids=unit.ids,
        name=unit.name or unit.ids,
        missing=unit.missing_ids or "drop",
        distinct=distinct,
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
