"""Specs: what a user writes in YAML or JSON, or passes to a flow."""

from dpdask.spec.calibration import CalibrationSpec
from dpdask.spec.load import (
    load_calibration_spec,
    load_release_spec,
    parse_calibration_spec,
    parse_release_spec,
)
from dpdask.spec.release import ReleaseSpec

__all__ = [
    "CalibrationSpec",
    "ReleaseSpec",
    "load_calibration_spec",
    "load_release_spec",
    "parse_calibration_spec",
    "parse_release_spec",
]
