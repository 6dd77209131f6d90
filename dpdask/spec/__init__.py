"""Specs: what a user writes in YAML or JSON, or passes to a flow. Pydantic models only."""

from dpdask.spec.calibration import (
    CalibrationSpec,
    CompositionSection,
    PrivacySection,
    SamplingSection,
    SensitivitySection,
)
from dpdask.spec.load import (
    load_calibration_spec,
    load_release_spec,
    parse_calibration_spec,
    parse_release_spec,
)
from dpdask.spec.mechanism import MECHANISMS, MechanismSection
from dpdask.spec.query import QUERIES, QuerySection
from dpdask.spec.release import ReleaseSpec
from dpdask.spec.schema import release_spec_schema

__all__ = [
    "MECHANISMS",
    "QUERIES",
    "CalibrationSpec",
    "CompositionSection",
    "MechanismSection",
    "PrivacySection",
    "QuerySection",
    "ReleaseSpec",
    "SamplingSection",
    "SensitivitySection",
    "load_calibration_spec",
    "load_release_spec",
    "parse_calibration_spec",
    "parse_release_spec",
    "release_spec_schema",
]
