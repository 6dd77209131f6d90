"""Everything dpdask raises on purpose, and the one way an exception leaves code that holds data.

    DpdaskError
    ├── InvalidInput          (also a ValueError) the caller can correct it
    │   ├── InvalidBudget         epsilon or delta
    │   ├── InvalidSensitivity    a sensitivity set, its ranges, its adjacency
    │   ├── InvalidMechanism      a mechanism's options or the sensitivity set it is used with
    │   ├── InvalidNoise          a factor or a noise distribution
    │   ├── InvalidKey            a signing key or a public key
    │   └── InvalidSpec           a spec file: unknown keys, wrong types
    ├── Unavailable           somebody did not answer; the same command may pass later
    ├── LedgerError           the ledger refuses
    │   ├── BudgetExceeded        a release would exceed its dataset's total; nothing was charged
    │   ├── RateLimited           it would exceed what some days allow; a later run may pass
    │   ├── LedgerUnavailable     (also Unavailable) its database does not answer, or is busy
    │   ├── LedgerStorageError    its database cannot be written: full, read-only, not permitted
    │   ├── LedgerCorrupt         a row was changed, removed or reordered
    │   └── MasterKeyError        the master key is missing, readable by others or another ledger's
    ├── ReleaseError          a release cannot begin or resume
    │   ├── StoreError            a source or an output cannot be opened, read or written
    │   │   ├── StorageFault          what was found there is damaged, full or not permitted
    │   │   ├── StoreUnavailable      (also Unavailable) a store does not answer
    │   │   └── OutputLockDamaged     the output lock does not say which release is under way
    │   ├── ClusterError          the Dask cluster is untrusted or cannot run the release
    │   │   └── ClusterUnavailable    (also Unavailable) it does not answer, or lost its workers
    │   ├── SourceChanged         the source is not the planned one; a charged release was burned
    │   └── VerificationFailed    a published or staged array is not what its manifest says
    └── OutOfReach            (also an ArithmeticError) no floating-point number holds the answer

Every message names the value, the rule and the way out, in one line.
"""

from __future__ import annotations

import contextlib
from types import TracebackType

__all__ = [
    "BareKeysWarning",
    "BudgetExceeded",
    "ClusterError",
    "ClusterUnavailable",
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
    "LedgerStorageError",
    "LedgerUnavailable",
    "MasterKeyError",
    "OutOfReach",
    "OutputLockDamaged",
    "RateLimited",
    "ReleaseError",
    "SourceChanged",
    "StorageFault",
    "StoreError",
    "StoreUnavailable",
    "Unavailable",
    "VerificationFailed",
    "redact_exceptions",
]


class DpdaskError(Exception):
    """The root of every error dpdask raises on purpose."""


class InvalidInput(DpdaskError, ValueError):
    """A value breaks a rule; the message says which one and how to correct it."""


class InvalidBudget(InvalidInput):
    """An epsilon or delta outside its range."""


class InvalidSensitivity(InvalidInput):
    """A sensitivity that is not positive, measured on data or undefined under its adjacency."""


class InvalidMechanism(InvalidInput):
    """A mechanism used outside the conditions of its theorem."""


class InvalidNoise(InvalidInput):
    """A noise factor that is singular, of the wrong shape or not orthonormal."""


class InvalidKey(InvalidInput):
    """A signing key or a public key that cannot be read, or must not be used."""


class InvalidSpec(InvalidInput):
    """A spec that cannot be read: an unknown key, a wrong type, a missing section."""


class Unavailable(DpdaskError):
    """Somebody did not answer: the same command may pass later, and nothing need be corrected."""


class LedgerError(DpdaskError):
    """The ledger refuses: an unknown dataset or release, or a step out of order."""


class BudgetExceeded(LedgerError):
    """A release would exceed its dataset's total budget; nothing was charged."""


class RateLimited(LedgerError):
    """A run would spend more than the rate limit allows; nothing was charged, a later one may."""


class LedgerUnavailable(LedgerError, Unavailable):
    """The ledger's database does not answer, shuts down, or is held by somebody else."""


class LedgerStorageError(LedgerError):
    """The ledger's database cannot be written: its disk is full, or writing is not permitted."""


class LedgerCorrupt(LedgerError):
    """The ledger's chain of hashes is broken: a row was changed, removed or reordered."""


class MasterKeyError(LedgerError):
    """The master key that wraps release keys is missing, unprotected, or another ledger's."""


class BareKeysWarning(UserWarning):
    """A ledger stores release keys unwrapped.

    Whoever reads its database can remove the noise of open releases.
    """


class ReleaseError(DpdaskError):
    """A release cannot begin or resume."""


class StoreError(ReleaseError):
    """A source or an output cannot be opened, read or written."""


class StorageFault(StoreError):
    """A source or an output is where the spec says, but damaged, full, or not permitted."""


class StoreUnavailable(StoreError, Unavailable):
    """A store does not answer, or asks to be left alone for a while."""


class OutputLockDamaged(StoreError):
    """The output lock, which names the release under way to an output, cannot be used."""


class ClusterError(ReleaseError):
    """The Dask cluster is not trusted with the data, or cannot run the release."""


class ClusterUnavailable(ClusterError, Unavailable):
    """The Dask cluster does not answer, or lost its workers and what they held."""


class SourceChanged(ReleaseError):
    """The source is not the one the release was planned for.

    The same noise on other data would reveal the difference between the two.
    """


class VerificationFailed(ReleaseError):
    """An array is not what its manifest says: a chunk is missing, damaged or different."""


class OutOfReach(DpdaskError, ArithmeticError):
    """The exact answer exists but lies outside the range of floating-point numbers."""


OUT_OF_MEMORY = "a worker ran out of memory; use smaller publish.chunks or compute.task_size"


class redact_exceptions(contextlib.ContextDecorator):  # noqa: N801, used as a function
    """Replace exceptions that may carry a value: the one way out of code that holds data.

    Use it as a decorator where the frame itself holds values (the frame of the decorated function
    is then not in the traceback), as a context manager elsewhere. An error of dpdask keeps its kind
    and its text, which are constants of this code base. Everything else becomes ``kind`` with the
    name of its type.

    Guarantee: the exception that leaves has no cause, no context and no text but ours.

    Args:
        kind: The error to raise in place of one that is not dpdask's own.
        text: Its text; ``{kind}`` stands for the name of the original type.
        catch: The exceptions to replace; others pass unchanged.
    """

    def __init__(
        self,
        kind: type[DpdaskError],
        text: str,
        catch: tuple[type[Exception], ...] = (Exception,),
    ) -> None:
        self._kind = kind
        self._text = text
        self._catch = catch

    def __enter__(self) -> None:
        """Do nothing: only the exit matters."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Raise the redacted error, detached from the original one."""
        if error is None or not isinstance(error, (DpdaskError, *self._catch)):
            return
        redacted = self._redacted(error)
        del error, traceback  # this frame is part of the new traceback
        try:
            raise redacted
        except DpdaskError:
            redacted.__context__ = None  # Python has just put the original one there
            raise

    def _redacted(self, error: BaseException) -> DpdaskError:
        if isinstance(error, DpdaskError):
            return type(error)(str(error))
        if isinstance(error, MemoryError):
            return ReleaseError(OUT_OF_MEMORY)
        return self._kind(self._text.format(kind=type(error).__name__))
