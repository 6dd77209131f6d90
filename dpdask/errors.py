"""Everything dpdask raises on purpose.

    DpdaskError
    ├── InvalidInput          (also a ValueError) the caller can mend it
    │   ├── InvalidBudget         epsilon or delta
    │   ├── InvalidSensitivity    a body, its ranges, its adjacency
    │   ├── InvalidMechanism      a mechanism's options or the body it was given
    │   ├── InvalidNoise          a factor or a noise shape
    │   ├── InvalidKey            a signing key or a public key
    │   └── InvalidSpec           a spec file: unknown keys, wrong types
    ├── LedgerError           the ledger refuses
    │   ├── BudgetExceeded        a release would pass its dataset's total; nothing was charged
    │   ├── LedgerCorrupt         a row was changed, removed or reordered
    │   └── MasterKeyError        the master key is missing, readable by others, or not the ledger's
    ├── ReleaseError          a release cannot go on
    │   ├── StoreError            a source or an output cannot be opened, read or written
    │   │   └── ClaimDamaged          nobody can tell which release is under way to an output
    │   ├── ClusterError          the Dask cluster cannot be reached, is not trusted or lost its
    workers
    │   ├── SourceChanged         the source is not the one that was planned for; the release was
    burned
    │   └── VerificationFailed    a published or staged array is not what its record says
    └── OutOfReach            (also an ArithmeticError) no floating-point number holds the answer

Every message names the value, the rule and the way out, in one line.
"""

from __future__ import annotations

__all__ = [
    "BareKeysWarning",
    "BudgetExceeded",
    "ClusterError",
    "DpdaskError",
    "InvalidBudget",
    "InvalidInput",
    "InvalidKey",
    "InvalidMechanism",
    "InvalidNoise",
    "InvalidSensitivity",
    "InvalidSpec",
    "LedgerCorrupt",
    "LedgerError",
    "MasterKeyError",
    "OutOfReach",
    "OutputLockDamaged",
    "ReleaseError",
    "SourceChanged",
    "StoreError",
    "VerificationFailed",
]


class DpdaskError(Exception):
    """The root of every error dpdask raises on purpose."""


class InvalidInput(DpdaskError, ValueError):
    """The caller gave a value that breaks a rule; the message says which and how to mend it."""


class InvalidBudget(InvalidInput):
    """An epsilon or delta outside its range."""


class InvalidSensitivity(InvalidInput):
    """A sensitivity that is not one: not positive, measured on data, or undefined under its
    adjacency.
    """


class InvalidMechanism(InvalidInput):
    """A mechanism asked to do what its theorem does not cover."""


class InvalidNoise(InvalidInput):
    """A noise factor that is singular, misshapen or not orthonormal."""


class InvalidKey(InvalidInput):
    """A signing key or a public key that cannot be read, or must not be used."""


class InvalidSpec(InvalidInput):
    """A spec that cannot be read: an unknown key, a wrong type, a missing section."""


class LedgerError(DpdaskError):
    """The ledger refuses: an unknown dataset or release, or a step out of order."""


class BudgetExceeded(LedgerError):
    """A release would pass its dataset's total budget; nothing was charged."""


class LedgerCorrupt(LedgerError):
    """The ledger's chain of hashes is broken: a row was changed, removed or reordered."""


class MasterKeyError(LedgerError):
    """The master key that wraps release keys is missing, not kept safe, or not the one of this
    ledger.
    """


class BareKeysWarning(UserWarning):
    """A ledger keeps release keys as they are: whoever reads the database can take the noise of
    open releases away.
    """


class ReleaseError(DpdaskError):
    """A release cannot begin or go on."""


class StoreError(ReleaseError):
    """A source or an output cannot be opened, read or written."""


class OutputLockDamaged(StoreError):
    """The note that says which release is under way to an output cannot be read."""


class ClusterError(ReleaseError):
    """The Dask cluster cannot be reached, is not trusted with the data, or lost its workers."""


class SourceChanged(ReleaseError):
    """The source is not the one the release was planned for: the same noise on other data reveals
    the difference.
    """


class VerificationFailed(ReleaseError):
    """An array is not what its record says: a chunk is missing, damaged or different."""


class OutOfReach(DpdaskError, ArithmeticError):
    """The exact answer exists but lies outside the range of floating-point numbers."""
