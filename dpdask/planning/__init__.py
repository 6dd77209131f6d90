"""Plans: everything that is decided before a release is charged."""

from dpdask.planning.checks import check_no_placeholders
from dpdask.planning.directions import component_with_directions
from dpdask.planning.estimate import Estimate
from dpdask.planning.fingerprint import recipe_digest, software_versions, spec_digest
from dpdask.planning.partition import (
    FAN_IN,
    answer_regions,
    needs_norm_pass,
    record_batches,
    records_at_once,
    tile_batches,
    tile_bytes,
)
from dpdask.planning.placement import placed
from dpdask.planning.plan import Component, ReleasePlan, Variable
from dpdask.planning.planner import make_plan
from dpdask.planning.principal_axes import PrincipalAxes
from dpdask.planning.sources import output_storage, source_storage

__all__ = [
    "FAN_IN",
    "Component",
    "Estimate",
    "PrincipalAxes",
    "ReleasePlan",
    "Variable",
    "answer_regions",
    "check_no_placeholders",
    "component_with_directions",
    "make_plan",
    "needs_norm_pass",
    "output_storage",
    "placed",
    "recipe_digest",
    "record_batches",
    "records_at_once",
    "software_versions",
    "source_storage",
    "spec_digest",
    "tile_batches",
    "tile_bytes",
]
