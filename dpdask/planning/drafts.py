"""A source with its question, and the question with its noise: what a variable is made of."""

from __future__ import annotations

from dpdask.errors import InvalidSensitivity
from dpdask.planning.answer import Component
from dpdask.planning.build_layers import build_layers
from dpdask.planning.build_query import build_query
from dpdask.planning.checks import check_missing, check_output, check_records
from dpdask.planning.component import make_component, with_layers
from dpdask.planning.disjoint import check_per
from dpdask.planning.layouts import layout_of
from dpdask.planning.query_inputs import ChosenBound
from dpdask.planning.sessions import is_session, session_query
from dpdask.planning.sources import with_arrays_beside
from dpdask.planning.variables import Draft
from dpdask.privacy import Adjacency, PrivacyBudget
from dpdask.queries import Query
from dpdask.spec.mechanism import MechanismSection
from dpdask.spec.release import ReleaseSpec
from dpdask.storage import SourceArray

__all__ = ["data_component", "make_draft", "make_query"]


def make_draft(spec: ReleaseSpec, source: SourceArray) -> Draft:
    """Return a source with its question and its layout."""
    query = make_query(spec, source)
    source = with_arrays_beside(spec, source, query)
    return Draft(spec, source, query, layout_of(spec, source, query))


def data_component(
    draft: Draft, name: str, budget: PrivacyBudget, section: MechanismSection
) -> Component:
    """Return the noisy answer of a draft with its layers, checked against how it is stored.

    Args:
        draft: The source with its question and its layout.
        name: The name of the component.
        budget: What it may cost.
        section: The mechanism.
    """
    spec, source, query, layout = draft
    layers = build_layers(spec, query, layout, source)
    write_chunk = layout.write_chunk[1:] if is_session(spec) else layout.write_chunk
    component = make_component(name, spec, query, section, budget, spec.composition, write_chunk)
    component = with_layers(component, layers)
    check_output(layout, component)
    return component


def make_query(spec: ReleaseSpec, source: SourceArray, chosen: ChosenBound | None = None) -> Query:
    """Build the query, and check that it has an answer on this source.

    Args:
        spec: The release, as if the source were alone in it.
        source: The source.
        chosen: The bound that was chosen privately; the widest one stands for it until then.
    """
    if is_session(spec):
        return session_query(spec, source)
    query = build_query(
        spec.query,
        spec.privacy_unit,
        source.shape,
        spec.composition,
        source.dimension_names,
        counts_beside=spec.mechanism.counts_beside,
        chosen=chosen,
    )
    check_records(query)
    check_missing(spec, source, query)
    _check_window(source, query)
    check_per(spec, source, query)
    return query


def _check_window(source: SourceArray, query: Query) -> None:
    """Refuse a window of records whose number is private.

    Positions shift when a record is removed, so the window loses one record and gains another: the
    sensitivity does not cover that.
    """
    window = source.window
    if window is None or query.sensitivity.adjacency is not Adjacency.ADD_REMOVE_ONE:
        return
    if query.units_axis == window[0]:
        raise InvalidSensitivity(
            f"source.window lies along the record axis {window[0]}, where a record that is"
            " removed lets another one in; use privacy_unit.adjacency: replace-one, or a window"
            " along another axis"
        )
