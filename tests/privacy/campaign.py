"""Many random specs under the exact audit: what was accepted, how many pairs were compared, and the
worst of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dpdask.errors import DpdaskError
from dpdask.queries import Clip, Ranges
from dpdask.queries.histogram import Histogram
from tests.privacy.audit import Group, SourceFile, Subject, Values, Verdict, audit_group
from tests.privacy.neighbours import cast, declared_groups, record_groups, resized_groups
from tests.privacy.specs import MECHANISMS, Case, random_case

__all__ = ["LEAST_PAIRS", "Campaign", "audit_case", "check_query", "same_recipe", "subject_of"]

_numbers = itertools.count()


@dataclass
class Row:
    """What is known of one kind of spec."""

    specs: int = 0
    refused: int = 0
    runs: int = 0
    pairs: int = 0
    ratio: float = 0.0
    where: str = ""


@dataclass
class Campaign:
    """Rows by mechanism, and every pair that shows more than was verified."""

    query: str
    rows: dict[str, Row] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    dtypes: Counter[str] = field(default_factory=Counter)

    def run(
        self, folder: Path, mechanism: str, *, seed: int, specs: int, groups: int, variants: int
    ) -> None:
        """Audit ``specs`` accepted specs of a mechanism; stop when far too many are refused."""
        rng = np.random.default_rng([seed, sum(map(ord, self.query + mechanism))])
        row = self.rows.setdefault(mechanism, Row())
        while row.specs < specs and row.refused <= 3 * specs + 20:
            case = random_case(rng, self.query, mechanism)
            try:
                subject = subject_of(case, folder)
            except DpdaskError:
                row.refused += 1
                continue
            row.specs += 1
            self.dtypes[case.dtype] += 1
            for verdict in audit_case(case, subject, folder, rng, groups=groups, variants=variants):
                row.runs, row.pairs = row.runs + verdict.runs, row.pairs + verdict.pairs
                if verdict.ratio > row.ratio:
                    row.ratio, row.where = verdict.ratio, " | ".join(verdict.worst)
                if not verdict.holds:
                    self.broken.append(f"{verdict.ratio:.9g} {verdict.worst} {case.described()}")

    @property
    def pairs(self) -> int:
        """How many pairs were compared."""
        return sum(row.pairs for row in self.rows.values())

    def table(self) -> str:
        """A line for each mechanism."""
        lines = [
            f"{'query':<11}{'mechanism':<20}{'specs':>6}{'refused':>8}{'runs':>7}{'pairs':>8} "
            " worst ratio, and its pair"
        ]
        for name, row in self.rows.items():
            counts = f"{row.specs:>6}{row.refused:>8}{row.runs:>7}{row.pairs:>8}"
            lines.append(f"{self.query:<11}{name:<20}{counts}  {row.ratio:.6f}  {row.where[:90]}")
        return "\n".join(lines)


def _stored(
    case: Case, folder: Path, records: int | None = None
) -> tuple[SourceFile, dict[str, Any]]:
    """The source of a case, with another number of records if given, and its spec."""
    name = f"source-{next(_numbers)}"
    shape = tuple(
        records if records is not None and i == case.axis else n for i, n in enumerate(case.shape)
    )
    chunks = tuple(min(c, n) for c, n in zip(case.chunks, shape, strict=True))
    file = SourceFile(folder / name, shape, case.dtype, chunks, **case.storage)
    file.put(np.zeros(shape, case.dtype))
    source = {**case.spec["source"], "url": str(folder / name)}
    return file, {**case.spec, "source": source, "output": {"url": f"memory://{name}"}}


def subject_of(case: Case, folder: Path, records: int | None = None) -> Subject:
    """The plan of a case on a source of its own."""
    file, spec = _stored(case, folder, records)
    return Subject.of(spec, file)


def audit_case(
    case: Case,
    subject: Subject,
    folder: Path,
    rng: np.random.Generator,
    *,
    groups: int,
    variants: int,
) -> Iterator[Verdict]:
    """Hostile neighbours of one spec, group by group; its published form and its noise are checked
    on the way.
    """
    dtype, component = np.dtype(case.dtype), subject.component
    many: dict[str, Any] = {
        "shape": case.shape,
        "dtype": dtype,
        "rng": rng,
        "groups": groups,
        "variants": variants,
    }
    assert subject.plan.guarantee.certified != subject.spherical, case.described()
    nothing = _nothing(case, subject)
    if nothing is not None and not subject.spherical:
        subject.check_noise(nothing)
    found: Iterable[Group]
    if case.private_count:
        assert case.axis is not None
        resized = resized_groups(
            component, axis=case.axis, contributions=case.contributions, **many
        )
        for gone, group in resized:
            fewer = subject_of(case, folder, case.shape[case.axis] - gone)
            assert same_recipe(subject, fewer), (
                "the number of records is private, yet the noise depends on it"
            )
            yield audit_group([fewer, subject], group)
        return
    if case.axis is None and case.query in ("declared", "steps"):
        found = declared_groups(
            component, steps=case.steps, window=case.window, **many | {"groups": 2 * groups}
        )
    else:
        found = record_groups(
            component, axis=case.axis, contributions=case.contributions, window=case.window, **many
        )
    for number, group in enumerate(found):
        if number == 0 and _cheap(subject):
            subject.check_published(group.sources[-1])
        yield audit_group([subject], group)


_COMPILED = {("f4", "f4"), ("f8", "f4"), ("f8", "i4"), ("f8", "i8"), ("i4", "f4"), ("i8", "i8")}


def _cheap(subject: Subject) -> bool:
    """Whether the published form needs no kernel that would be compiled for it alone: each takes a
    second.
    """
    plan = subject.plan
    working = "f8" if subject.component.query.summed else plan.source.working_dtype.str[1:]
    output = np.dtype(plan.layout.dtype).str[1:]
    return output == "f8" or (working, output) in _COMPILED


def same_recipe(one: Subject, other: Subject) -> bool:
    """Whether two plans add the same noise to answers on the same grid."""
    a, b = one.component, other.component
    same = a.grid_to_dict() == b.grid_to_dict()
    noise = a.privatizer.noise.to_dict() == b.privatizer.noise.to_dict()
    return (
        same
        and noise
        and a.guarantee.verified.to_dict() == b.guarantee.verified.to_dict()
        and a.tiling == b.tiling
    )


def _nothing(case: Case, subject: Subject) -> Values | None:
    """A source whose answer is 0, if there is one."""
    query, dtype = subject.component.query, np.dtype(case.dtype)
    if isinstance(query, Histogram):
        outside = min(min(axis.edges) for axis in query.axes) - 1.0
        values = cast(np.full(case.shape, outside), dtype)
        return (
            values
            if np.all(values.astype(np.float64) < min(min(axis.edges) for axis in query.axes))
            else None
        )
    if isinstance(query.bound, Ranges) and not all(
        low <= 0 <= high for low, high in query.bound.pairs
    ):
        return None
    assert query.bound is None or isinstance(query.bound, Clip | Ranges)
    nothing = np.zeros(case.shape, dtype)
    if query.name != "covariance" or query.bound is None:
        return nothing
    if case.window is not None:
        return None
    nothing[...] = cast(query.bound.center.values, dtype)
    away = query.bound.center.shifted(nothing, tuple(slice(0, n) for n in case.shape))
    return None if np.any(away) else nothing  # where its type holds the centre


LEAST_PAIRS = {  # of one seed; two of them make more than 60,000
    "identity": 12_000,
    "sum": 3_000,
    "mean": 12_000,
    "second-moment": 2_500,
    "covariance": 5_000,
    "histogram": 2_500,
    "declared": 1_500,
    "steps": 400,
}


def check_query(query: str, seed: int, folder: Path) -> None:
    """Audit random specs of one query with every mechanism it can have; no pair may show more than
    was verified.

    That the audit can fail is checked too: specs of every mechanism were accepted, and neighbours
    came close to the bound.
    """
    campaign = Campaign(query)
    wanted = {
        name: 1 if name == "rank-one" else 3 for name in MECHANISMS[query]
    }  # its exact calibration takes a second
    for mechanism, specs in wanted.items():
        campaign.run(folder, mechanism, seed=seed, specs=specs, groups=2, variants=20)
    print("\n" + campaign.table())
    assert not campaign.broken, campaign.broken[0]
    assert campaign.pairs >= LEAST_PAIRS[query]
    assert all(
        row.specs == wanted[name] and row.ratio > 0.3 for name, row in campaign.rows.items()
    ), campaign.table()
    assert max(row.ratio for row in campaign.rows.values()) > 0.999
    assert len(campaign.dtypes) >= 3
