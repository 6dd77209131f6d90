"""Everything dpdask raises on purpose.

    DpdaskError
    ├── InvalidInput          (also a ValueError) the caller can mend it
    │   ├── InvalidBudget         epsilon or delta
    │   ├── InvalidSensitivity    a body, its ranges, its adjacency
    │   ├── InvalidMechanism      a mechanism's options or the body it was given
    │   ├── InvalidNoise          a factor or a noise shape
    │   └── InvalidSpec           a spec file: unknown keys, wrong types
    └── OutOfReach            (also an ArithmeticError) no floating-point number holds the answer

Every message names the value, the rule and the way out, in one line.
"""

from __future__ import annotations

__all__ = [
    "DpdaskError",
    "InvalidBudget",
    "InvalidInput",
    "InvalidMechanism",
    "InvalidNoise",
    "InvalidSensitivity",
    "InvalidSpec",
    "OutOfReach",
]


class DpdaskError(Exception):
    """The root of every error dpdask raises on purpose."""


class InvalidInput(DpdaskError, ValueError):
    """The caller gave a value that breaks a rule; the message says which and how to mend it."""


class InvalidBudget(InvalidInput):
    """An epsilon or delta outside its range."""


class InvalidSensitivity(InvalidInput):
    """A sensitivity that is not one: not positive, measured on data, or undefined under its adjacency."""


class InvalidMechanism(InvalidInput):
    """A mechanism asked to do what its theorem does not cover."""


class InvalidNoise(InvalidInput):
    """A noise factor that is singular, misshapen or not orthonormal."""


class InvalidSpec(InvalidInput):
    """A spec that cannot be read: an unknown key, a wrong type, a missing section."""


class OutOfReach(DpdaskError, ArithmeticError):
    """The exact answer exists but lies outside the range of floating-point numbers."""
