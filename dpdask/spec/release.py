"""The release spec: source, output, privacy unit, query, budget, compute and publication.

Secrets are not fields. A storage option that is one is given as ``{env: NAME}`` and read from the
environment by the process that opens the store; a ledger's password comes from its own environment.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from dpdask.privacy import Adjacency
from dpdask.spec.calibration import (
    CompositionSection,
    MechanismSection,
    Number,
    PrivacySection,
    Ranges,
    Section,
    Vector,
    Whole,
)
from dpdask.types import Json

__all__ = [
    "QUERIES",
    "Bins",
    "BudgetSection",
    "ComputeSection",
    "CovarianceSection",
    "EnvironmentValue",
    "HistogramSection",
    "IdentitySection",
    "MeanSection",
    "NoiseSection",
    "OutputSection",
    "PrecomputedSection",
    "PrivacyUnitSection",
    "PublishSection",
    "QuerySection",
    "ReleaseSpec",
    "SourceSection",
    "StackSection",
    "SumSection",
    "TlsSection",
    "WindowSection",
]

Positive = Annotated[Whole, Field(ge=1)]
_SECRET = re.compile(
    r"secret|passw|passphrase|token|credential|key|private|sas|connection_string|auth",
    re.IGNORECASE,
)
_PROVIDER = re.compile(r"^(aws|google|azure)_(storage_)?", re.IGNORECASE)
# storage options that may stand in a spec; all others come from the environment, since some are
# secrets
_HARMLESS = {
    "account_name", "allow_http", "bucket", "bucket_name", "checksum_algorithm", "conditional_put",
    "container_name",
    "copy_if_not_exists", "default_region", "disable_tagging", "endpoint", "endpoint_url",
    "imdsv1_fallback", "region",
    "request_payer", "s3_express", "skip_signature", "unsigned_payload", "use_azure_cli",
    "use_emulator",
    "use_fabric_endpoint", "virtual_hosted_style_request",
}  # fmt: skip
_LEDGER_URL = re.compile(
    r"[\w+]+://(?:[^:/]*(?::(?P<password>[^@]*))?@)?[^?]*(?:\?(?P<options>.*))?"
)
_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
}


class EnvironmentValue(Section):
    """A value read from an environment variable where it is needed, so never in a spec."""

    env: str


def _no_plain_secret(options: Json) -> Json:
    for key, value in options.items():
        if _PROVIDER.sub("", key.lower()) not in _HARMLESS and not isinstance(
            value, EnvironmentValue
        ):
            raise ValueError(
                f"option {key} may be a secret; write {key}: {{env: NAME}} and set the variable"
                " NAME"
            )
        if isinstance(value, str):
            _no_secret_in_url(value)
    return options


def _no_secret_in_url(url: str) -> str:
    if (
        "://" in url
        and not url.startswith(("file:", "memory:"))
        and ("@" in urlsplit(url).netloc or "?" in url)
    ):
        raise ValueError(
            "a URL with a user, a password or a query in it may hold a secret; give that by the"
            " environment"
        )
    return url


def _no_secret_inside(options: Any) -> Any:
    for key, value in (
        options.items()
        if isinstance(options, dict)
        else enumerate(options)
        if isinstance(options, list)
        else ()
    ):
        hidden = isinstance(value, str) and re.search(
            rf"({_SECRET.pattern})\w*\s*[=:]", value, re.IGNORECASE
        )
        if hidden or (
            isinstance(key, str)
            and _SECRET.search(key)
            and not isinstance(value, dict | bool | None)
        ):
            raise ValueError(
                f"option {key} looks like a secret; let the factory read it from its own"
                " environment"
            )
        _no_secret_inside(value)
    return options


Url = Annotated[str, Field(min_length=1), AfterValidator(_no_secret_in_url)]


StorageOptions = Annotated[
    dict[str, EnvironmentValue | bool | int | str],
    Field(default_factory=dict),
]


def _bytes(value: Any) -> Any:
    """``64 MiB`` as a number of bytes."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError(f"{value!r} is no size; write a number of bytes or such as 64 MiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


Bytes = Annotated[Whole, BeforeValidator(_bytes, json_schema_input_type=int | str), Field(ge=1)]


class WindowSection(Section):
    """Part of an axis: indices ``start`` to ``stop``. A series releases one window after the other
    of a growing array.
    """

    axis: Whole
    start: Annotated[Whole, Field(ge=0)]
    stop: Annotated[Whole, Field(ge=1)]
    series: str | None = None


class SourceSection(Section):
    """``source``: the sensitive array. Paths, file://, s3://, gs://, memory:// and zip files; Zarr
    v2 and v3.
    """

    url: Url
    array: str = ""
    window: WindowSection | None = None
    options: StorageOptions

    _secrets = field_validator("options")(_no_plain_secret)


class OutputSection(Section):
    """``output``: a new group with the released array in it."""

    url: Url
    array: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")] = "data"
    options: StorageOptions

    _secrets = field_validator("options")(_no_plain_secret)


class PrivacyUnitSection(Section):
    """``unit``: whom the release protects, and the bound on what one of them can change."""

    adjacency: Adjacency = Adjacency.REPLACE_ONE
    record_dim: Whole | None = None
    l2_clip_norm: Number | None = None
    ranges: Ranges | None = None
    feature_dim: Whole | None = None
    max_contributions: Positive = 1


class IdentitySection(Section):
    """``identity``: the tensor itself."""

    name: Literal["identity"]


class SumSection(Section):
    """``sum`` over records."""

    name: Literal["sum"]


class MeanSection(Section):
    """``mean`` over records, whose number is public."""

    name: Literal["mean"]


class CovarianceSection(Section):
    """``covariance``: X'X / n of clipped records (X'X under add-remove-one)."""

    name: Literal["covariance"]


class Bins(Section):
    """Equal bins from ``low`` to ``high``."""

    low: Number
    high: Number
    bins: Positive


class HistogramSection(Section):
    """``histogram``: counts of records in public bins; one list of edges per counted column."""

    name: Literal["histogram"]
    edges: Annotated[list[Vector | Bins], Field(min_length=1)]
    columns: list[Whole] | None = None


class PrecomputedSection(Section):
    """``precomputed``: the array is a finished query result whose l2 sensitivity the caller vouches
    for.
    """

    name: Literal["precomputed"]
    l2_sensitivity: Number


QUERIES: dict[str, type[BaseModel]] = {
    "identity": IdentitySection,
    "sum": SumSection,
    "mean": MeanSection,
    "covariance": CovarianceSection,
    "histogram": HistogramSection,
    "precomputed": PrecomputedSection,
}


def _named(value: Any) -> Any:
    """``identity`` as short for ``{name: identity}``."""
    return {"name": value} if isinstance(value, str) else value


QuerySection = Annotated[
    IdentitySection
    | SumSection
    | MeanSection
    | CovarianceSection
    | HistogramSection
    | PrecomputedSection,
    Field(discriminator="name"),
]


class StackSection(CompositionSection):
    """``composition`` of a release: the source is a finished stack of results, one per step."""

    steps_are_independent: bool = False


class NoiseSection(Section):
    """``noise``: the grid and the published type. Integer types publish grid integers with a CF
    ``scale_factor``.
    """

    steps_per_sigma: Whole | None = None
    output_dtype: Literal["float32", "float64", "int32", "int64"] | None = None

    @field_validator("steps_per_sigma")
    @classmethod
    def _power_of_two(cls, value: int | None) -> int | None:
        if value is not None and not (2**6 <= value <= 2**30 and value & (value - 1) == 0):
            raise ValueError(
                f"{value} is not a power of two from 64 to 2^30; leave it out unless you know"
                " better"
            )
        return value


class BudgetSection(Section):
    """``budget``: who pays. The ledger's URL may also come from DPDASK_LEDGER; it holds no
    password.

    An array that is charged to another dataset of the ledger is refused, unless
    ``array_in_other_dataset`` accepts that the same people lose both budgets.
    """

    dataset: Annotated[str, Field(min_length=1, max_length=200)]
    ledger: str | None = None
    curator: str | None = None
    array_in_other_dataset: bool = False

    @field_validator("ledger")
    @classmethod
    def _no_password(cls, value: str | None) -> str | None:
        if value is None:
            return value
        parts = _LEDGER_URL.fullmatch(value)
        if parts is None:
            raise ValueError(
                "the ledger URL cannot be read; write sqlite:///path or postgresql://host/database"
            )
        names = [name for name, _ in parse_qsl(parts["options"] or "", keep_blank_values=True)]
        if parts["password"] is not None or any(_SECRET.search(name) for name in names):
            raise ValueError(
                "the ledger URL holds a password; drop it and set PGPASSWORD or DPDASK_LEDGER in"
                " the environment"
            )
        return value


class TlsSection(Section):
    """Certificates, by path, for a ``tls://`` scheduler."""

    ca_file: str
    cert_file: str
    key_file: str


class ComputeSection(Section):
    """``compute``: where tasks run and how much each may hold."""

    cluster: Annotated[str, AfterValidator(_no_secret_in_url)] = "local"
    cluster_options: Annotated[Json, AfterValidator(_no_secret_inside)] = Field(
        default_factory=dict
    )
    workers: Positive = 1
    threads: Positive | None = None
    memory: Bytes | None = None
    task_size: Bytes = 64 * 2**20
    tls: TlsSection | None = None
    allow_unencrypted_cluster: bool = False


class PublishSection(Section):
    """``publish``: the form of the output. Only what is named here is copied from the source."""

    chunks: list[Positive] | None = None
    shards: list[Positive] | None = None
    codec: Literal["none", "zstd"] = "none"
    dimension_names: list[Annotated[str, Field(min_length=1)]] | None = None
    attributes: list[str] = Field(default_factory=list)
    coordinates: list[str] = Field(default_factory=list)
    description: str | None = None
    edition: Positive = 1


class ReleaseSpec(Section):
    """One release: what to read, whom to protect, what to spend, where to publish."""

    source: SourceSection
    output: OutputSection
    privacy_unit: PrivacyUnitSection = PrivacyUnitSection()
    query: Annotated[
        QuerySection, BeforeValidator(_named, json_schema_input_type=QuerySection | str)
    ]
    privacy: PrivacySection
    mechanism: Annotated[
        MechanismSection, BeforeValidator(_named, json_schema_input_type=MechanismSection | str)
    ]
    composition: StackSection = StackSection()
    noise: NoiseSection = NoiseSection()
    budget: BudgetSection
    compute: ComputeSection = ComputeSection()
    publish: PublishSection = PublishSection()
    accept_uncertified: bool = False

    @model_validator(mode="after")
    def _one_place_each(self) -> ReleaseSpec:
        if self.source.url.rstrip("/") == self.output.url.rstrip("/"):
            raise ValueError("output.url is the source; publish somewhere else")
        return self
