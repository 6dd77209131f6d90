"""The JSON schema of a release spec, generated from its models."""

from __future__ import annotations

from dpdask.spec.release import ReleaseSpec

__all__ = ["SCHEMA_URL", "release_spec_schema"]

SCHEMA_URL = "https://raw.githubusercontent.com/dpdask/dpdask/main/docs/release-spec.schema.json"


def release_spec_schema() -> dict[str, object]:
    """Return the JSON schema of a release spec, with every registered query and mechanism."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_URL,
        **ReleaseSpec.model_json_schema(),
    }
