"""The release spec: source, output, privacy unit, query, budget, compute and publication.

Secrets are not fields (see :mod:`dpdask.spec.secrets`).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from dpdask.privacy import Adjacency
from dpdask.spec.bounds import (
    CenterSection,
    ClipNorm,
    EntryRanges,
    PrivateNormSection,
    PrivateRangesSection,
)
from dpdask.spec.calibration import CompositionSection, PrivacySection
from dpdask.spec.fields import (
    ArrayName,
    Attributes,
    ByteCount,
    Deadline,
    Dimension,
    Number,
    Positive,
    Seconds,
    Section,
    Vector,
    Whole,
)
from dpdask.spec.layers import Layers
from dpdask.spec.mechanism import AutoSection, Mechanism
from dpdask.spec.query import Query
from dpdask.spec.secrets import ClusterOptions, LedgerUrl, StorageOptions, Url
from dpdask.spec.steps import StepsSection

__all__ = [
    "AUTO",
    "INLINE",
    "LOCAL",
    "BudgetSection",
    "CenterSection",
    "ComputeSection",
    "NoiseSection",
    "OutputSection",
    "PrivacyUnitSection",
    "PublishSection",
    "ReleaseSpec",
    "SourceSection",
    "StackSection",
    "TlsSection",
    "VariableSection",
    "WindowSection",
]

AUTO, LOCAL, INLINE = "auto", "local", "inline"  # values of compute.cluster


class WindowSection(Section):
    """Part of an axis: indices ``start`` to ``stop``.

    A series releases consecutive windows of a growing array.

    Args:
        axis: The dimension, by name or index.
        start: The first index.
        stop: The index after the last one.
        series: The name of the series, if the window belongs to one.
    """

    axis: Dimension
    start: Annotated[Whole, Field(ge=0)]
    stop: Positive
    series: str | None = None


class CoarsenSection(Section):
    """Entries along one public dimension are added up before anything else: days to months.

    Args:
        dim: The dimension, by name or index.
        by: How many consecutive entries are added up.
        array: A public array of labels along the dimension, beside the source: entries with the
            same label are added up.
    """

    dim: Dimension
    by: Positive | None = None
    array: str | None = None

    @model_validator(mode="after")
    def _check_one(self) -> CoarsenSection:
        if (self.by is None) == (self.array is None):
            raise ValueError("coarsen takes exactly one of by and array; give one of them")
        return self


class VariableSection(Section):
    """One of ``source.arrays``: what is its own; all else is that of ``privacy_unit``.

    A variable with a clip norm or ranges of its own takes neither bound nor centre from there.

    Args:
        l2_clip_norm: The l2 norm to which its part of every record is clipped.
        ranges: Public ranges to which its entries are clamped.
        feature_dim: The dimension along which the ranges lie.
        center: The public point that its records are measured from.
        missing: What a missing entry does.
        expected_distance: How far a mean is expected from the centre.
        share: Its share of the budget's squared mu; those of all variables add up to 1. Where left
            out, noise is the same in proportion to the bounds.
    """

    l2_clip_norm: ClipNorm | None = None
    ranges: EntryRanges | None = None
    feature_dim: Dimension | None = None
    center: Number | Vector | CenterSection | None = None
    missing: Literal["center", "count"] | None = None
    expected_distance: Annotated[Number, Field(gt=0, allow_inf_nan=False)] | None = None
    share: Annotated[Number, Field(gt=0, le=1)] | None = None


class SourceSection(Section):
    """``source``: the sensitive array, or several of one group; Zarr v2 or v3.

    Args:
        url: A path, a file://, s3://, gs:// or memory:// URL, or a zip file.
        steps: Instead of a URL, what one step is that :func:`dpdask.steps` is given.
        array: The path of the array in it.
        arrays: Several arrays of the group instead, by name, each with what is its own of the
            bound.
        window: The part of the array to read; all of it where left out.
        coarsen: How entries along a public dimension are added up first.
        decode: Decode values by their CF attributes, as xarray does; false for the numbers as they
            are stored.
        options: Options of the storage.
    """

    url: Annotated[Url, Field(min_length=1)] = ""
    steps: StepsSection | None = None
    array: str = ""
    arrays: Annotated[dict[ArrayName, VariableSection], Field(min_length=1)] | None = None
    window: WindowSection | None = None
    coarsen: CoarsenSection | None = None
    decode: bool = True
    options: StorageOptions

    @field_validator("arrays", mode="before")
    @classmethod
    def _take_a_bare_name(cls, value: object) -> object:
        """A variable without anything of its own may be left empty."""
        if not isinstance(value, dict):
            return value
        return {name: {} if own is None else own for name, own in value.items()}

    @model_validator(mode="after")
    def _check_url_or_steps(self) -> SourceSection:
        if self.steps is None and not self.url:
            raise ValueError("url is missing; add it")
        others = self.model_fields_set - {"steps"}
        if self.steps is not None and others:
            raise ValueError(f"steps are handed over, and {min(others)} says what to read; drop it")
        return self


class OutputSection(Section):
    """``output``: a new group with the released array in it."""

    url: Annotated[Url, Field(min_length=1)]
    array: ArrayName = "data"
    options: StorageOptions


class PrivacyUnitSection(Section):
    """``privacy_unit``: whom the release protects, and the bound on what one of them can change.

    Args:
        adjacency: Which data sets are neighbours.
        record_dim: The dimension along which records lie, by name or index.
        l2_clip_norm: The l2 norm to which every record is clipped, or how it is chosen privately.
        ranges: Public ranges to which entries are clamped: one for all, or one per feature; or how
            they are chosen privately.
        feature_dim: The dimension along which the ranges lie, by name or index.
        max_contributions: How many records one privacy unit has at most: enforced with ``ids``,
            declared without.
        ids: The array beside the source that says whose every record is: the privacy unit is then
            a person, of whose records a random subset counts.
        max_cells: Of a histogram with ``ids``, in how many cells one of them is counted at most,
            once in each; instead of ``max_contributions``.
        clip: With ``ids``, what ``l2_clip_norm`` bounds: every ``record``, or all records of a
            ``person`` together.
        missing_ids: What a record without an id does: it is left out (``drop``), or a unit of its
            own (``own``).
        name: What one privacy unit is called, such as ``plane``; as ``ids`` where left out.
        per: The dimension along which one privacy unit has one index, for good: that of the
            records where each record stays where it is, or another one, ``day``, where a unit is
            one day of a record. Windows along it are charged as much as the most charged index.
        center: The public point that records are measured from: a number, one per feature, or an
            array of one record's shape. The middle of ranges, or 0, where left out.
        missing: What a missing entry (NaN) does: it counts as the ``center``, or present entries
            are counted and the ``count`` is released, too.
        expected_distance: How far a mean is expected from the centre, a public guess by which the
            budget is shared between sums and counts.
    """

    adjacency: Adjacency = Adjacency.REPLACE_ONE
    record_dim: Dimension | None = None
    l2_clip_norm: ClipNorm | None = None
    ranges: EntryRanges | None = None
    feature_dim: Dimension | None = None
    max_contributions: Positive = 1
    per: Dimension | None = None
    ids: Annotated[str, Field(min_length=1)] | None = None
    max_cells: Positive | None = None
    clip: Literal["record", "person"] | None = None
    missing_ids: Literal["own", "drop"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    center: Number | Vector | CenterSection | None = None
    missing: Literal["center", "count"] | None = None
    expected_distance: Annotated[Number, Field(gt=0, allow_inf_nan=False)] | None = None

    @property
    def private_bound(self) -> PrivateNormSection | PrivateRangesSection | None:
        """How the bound is chosen privately; None where the spec says it."""
        if isinstance(self.l2_clip_norm, PrivateNormSection):
            return self.l2_clip_norm
        return self.ranges if isinstance(self.ranges, PrivateRangesSection) else None


class StackSection(CompositionSection):
    """``composition`` of a release: the source is a finished stack of results, one per step."""

    steps_are_independent: bool = False


class NoiseSection(Section):
    """``noise``: the grid and the published type.

    Integer types publish grid integers with a CF ``scale_factor``.
    """

    steps_per_sigma: Whole | None = None
    output_dtype: Literal["float32", "float64", "int32", "int64"] | None = None

    @field_validator("steps_per_sigma")
    @classmethod
    def _check_power_of_two(cls, value: int | None) -> int | None:
        if value is not None and not (2**6 <= value <= 2**30 and value & (value - 1) == 0):
            raise ValueError(
                f"{value} is not a power of two from 64 to 2^30; choose one, or leave it out for"
                " the default"
            )
        return value


class BudgetSection(Section):
    """``budget``: the dataset that is charged.

    Args:
        dataset: The dataset of the ledger.
        ledger: The ledger's URL, without a password; DPDASK_LEDGER may give it instead.
        curator: Who publishes the release.
        array_in_other_dataset: Accept that the array is charged to another dataset, too, so that
            the same people lose both budgets; refused otherwise.
    """

    dataset: Annotated[str, Field(min_length=1, max_length=200)]
    ledger: LedgerUrl | None = None
    curator: str | None = None
    array_in_other_dataset: bool = False


class TlsSection(Section):
    """Certificates, by path, for a ``tls://`` scheduler."""

    ca_file: str
    cert_file: str
    key_file: str


class ComputeSection(Section):
    """``compute``: where tasks run and how much each may hold.

    Args:
        cluster: ``auto``, ``local``, ``inline``, the address of a scheduler, or
            ``package.module:factory``.
        cluster_options: Keyword arguments of the factory.
        workers: How many worker processes a local cluster has.
        threads: Threads of each worker; one per processor where left out.
        memory: The memory of each worker.
        task_size: How much of the source one task reads at most.
        tls: Certificates for a ``tls://`` scheduler.
        allow_unencrypted_cluster: Accept a remote scheduler without TLS.
        patience: For how many seconds a store, the ledger's database or the cluster is asked again
            when it does not answer.
        task_deadline: For how many seconds the cluster may finish no task at all.
    """

    cluster: Url = AUTO
    cluster_options: ClusterOptions = Field(default_factory=dict)
    workers: Positive = 1
    threads: Positive | None = None
    memory: ByteCount | None = None
    task_size: ByteCount = 64 * 2**20
    tls: TlsSection | None = None
    allow_unencrypted_cluster: bool = False
    patience: Seconds = 300.0
    task_deadline: Deadline = 3600.0


class PublishSection(Section):
    """``publish``: the form of the output. Only what is named here is copied from the source.

    Args:
        chunks: The shape of a chunk; that of the source, or about 16 MiB, where left out.
        shards: The shape of a shard; no shards where left out.
        codec: The compression of chunks.
        dimension_names: Names of the dimensions; those of the source where they are kept.
        attributes: Names of attributes of the source that are public, or attributes to set.
        coordinates: Arrays beside the source that are public.
        records_are_public: Whether coordinates along the records, such as names of people, are
            public; refused otherwise.
        layers: What is computed from the noisy result and published beside it, such as
            ``non-negative``; a list within the list is applied in order.
        description: A text for the release card, and the ``long_name`` of the result.
        edition: Another edition of the same spec is another release, with its own charge.
    """

    chunks: list[Positive] | None = None
    shards: list[Positive] | None = None
    codec: Literal["none", "zstd"] = "none"
    dimension_names: list[Annotated[str, Field(min_length=1)]] | None = None
    attributes: Attributes = Field(default_factory=list)
    coordinates: list[str] = Field(default_factory=list)
    records_are_public: bool = False
    layers: Layers = Field(default_factory=list)
    description: str | None = None
    edition: Positive = 1


class ReleaseSpec(Section):
    """One release: what to read, whom to protect, what to spend, where to publish.

    Args:
        source: The sensitive array.
        output: Where the release is published.
        privacy_unit: Whom it protects.
        query: What is computed.
        privacy: The privacy budget it spends.
        mechanism: The mechanism that calibrates the noise; ``auto`` where left out.
        composition: The steps of a finished stack.
        noise: The grid and the published type.
        budget: The ledger and the dataset that is charged.
        compute: The cluster.
        publish: The form of the output.
        accept_uncertified: Release a mechanism that is not certified, at its verified privacy cost.
    """

    source: SourceSection
    output: OutputSection
    privacy_unit: PrivacyUnitSection = PrivacyUnitSection()
    query: Query
    privacy: PrivacySection
    mechanism: Mechanism = AutoSection(name="auto")
    composition: StackSection = StackSection()
    noise: NoiseSection = NoiseSection()
    budget: BudgetSection
    compute: ComputeSection = ComputeSection()
    publish: PublishSection = PublishSection()
    accept_uncertified: bool = False

    @model_validator(mode="after")
    def _check_output_is_not_the_source(self) -> ReleaseSpec:
        if self.source.url.rstrip("/") == self.output.url.rstrip("/"):
            raise ValueError("output.url is the source; publish somewhere else")
        return self

    @model_validator(mode="after")
    def _check_one_or_several(self) -> ReleaseSpec:
        if self.source.arrays is None:
            return self
        if self.source.array:
            raise ValueError("source.array and source.arrays are both given; give one of them")
        if "array" in self.output.model_fields_set:
            raise ValueError(
                "output.array names one array, and those of source.arrays keep their names; drop it"
            )
        return self
