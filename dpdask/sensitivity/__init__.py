"""Sensitivity sets: the differences that one privacy unit can make, with adjacency and origin.

Sensitivity and adjacency are one value, so that no accountant can pair a radius with the wrong
neighbours. A set answers one question: how far it reaches after whitening, ``sup ||W D||`` for
Kronecker noise with factors U_k, W = the Kronecker product of their inverses.

- L2Ball: any difference with a norm of at most the radius; radius * product of 1/sigma_min(U_k).
- RecordBall: one slice along the record axis changes, with a norm of at most the radius; the same
  product with max_j ||U_record^-1 e_j|| on the record axis.
- RecordBox: one record changes, feature i by at most widths[i]; exact for diagonal factors, that of
  the RecordBall around it for others.
- EntrywiseBox: every entry may change by at most its width; exact for diagonal factors, that of the
  L2Ball around it for others.
- L1Ball: any difference with bounded l1 and l2 norms; an l2 ball, or a record's, after whitening.

Laplace noise needs ``sup ||D||_1``, which a set states as ``l1`` where it is known.
"""

from dpdask.errors import InvalidSensitivity
from dpdask.privacy import Adjacency
from dpdask.sensitivity.balls import L1Ball, L2Ball, RecordBall
from dpdask.sensitivity.base import Origin, SensitivitySet, Whitening, known_l1
from dpdask.sensitivity.boxes import EntrywiseBox, RecordBox
from dpdask.types import Json

__all__ = [
    "EntrywiseBox",
    "L1Ball",
    "L2Ball",
    "Origin",
    "RecordBall",
    "RecordBox",
    "SensitivitySet",
    "Whitening",
    "known_l1",
    "sensitivity_from_dict",
]

_KINDS: dict[str, type[SensitivitySet]] = {
    kind.name: kind for kind in (L2Ball, L1Ball, RecordBall, RecordBox, EntrywiseBox)
}


def sensitivity_from_dict(description: Json) -> SensitivitySet:
    """Return the set that :meth:`SensitivitySet.to_dict` wrote."""
    name = description["name"]
    if name not in _KINDS:
        raise InvalidSensitivity(f"sensitivity {name!r} is unknown; use {', '.join(_KINDS)}")
    fields: Json = {
        field: tuple(value) if isinstance(value, list) else value
        for field, value in description["configuration"].items()
    }
    fields["adjacency"] = Adjacency(fields["adjacency"])
    fields["origin"] = Origin(fields["origin"])
    return _KINDS[name](**fields)
