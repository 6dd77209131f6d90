"""Faults of object stores, told apart: who did not answer, for how long, and what to do.

obstore tells most faults in its text alone. That text holds addresses and what the server answered,
so none of it is passed on.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator

from dpdask.errors import StorageFault, StoreError, StoreUnavailable

__all__ = ["plain_errors", "raise_if_unavailable"]

_WHO = "the object store"
_NO_BUCKET = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")
_CREDENTIALS = "check the credentials in its options or in the environment"

# By what is in the text of an error, the first that fits.
_FAULTS: tuple[tuple[re.Pattern[str], type[StoreError], str], ...] = (
    (_NO_BUCKET, StorageFault, "has no such bucket; check its name, or create it"),
    (
        re.compile("/latest/(api/token|meta-data)|metadata.google|[cC]redential"),
        StorageFault,
        f"was asked without credentials: none are configured; {_CREDENTIALS}",
    ),
    (
        re.compile("InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|Unauthenticated| 401 "),
        StorageFault,
        f"does not accept the credentials; {_CREDENTIALS}",
    ),
    (
        re.compile("PermissionDenied| 403 "),
        StorageFault,
        "refuses the access: these credentials lack the permission; grant it",
    ),
    (
        re.compile("dns error|failed to lookup address"),
        StoreUnavailable,
        "cannot be found: its host name is not known here; check its endpoint, or the name service",
    ),
    (
        re.compile(r"Connection refused|ConnectionRefused|kind: Connect\b"),
        StoreUnavailable,
        "refused the connection, for {seconds} s: nothing listens there; check its endpoint, or"
        " try again",
    ),
    (
        re.compile(r"kind: Timeout\b|timed out| 408 "),
        StoreUnavailable,
        "did not answer for {seconds} s; try again",
    ),
    (
        re.compile(r"status code: 5\d\d| 429 |SlowDown"),
        StoreUnavailable,
        "answered with errors of its own for {seconds} s; try again",
    ),
    (
        re.compile(r"kind: (Request|Interrupted|Decode)\b|error sending request|connection closed"),
        StoreUnavailable,
        "broke the connection, for {seconds} s; try again",
    ),
)


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors of an object store into one line of ours, by kind.

    An object that is missing stays a ``FileNotFoundError``, unless its bucket is.
    """
    began = time.monotonic()
    try:
        yield
    except StoreError:
        raise
    except FileNotFoundError as error:
        if not _NO_BUCKET.search(str(error)):
            raise
        raise _fault_of(error, 0.0) from None
    except Exception as error:
        raise _fault_of(error, time.monotonic() - began) from None


def raise_if_unavailable(error: Exception) -> None:
    """Raise :class:`StoreUnavailable` if zarr failed because an object store did not answer.

    Such a store holds nothing that must be restored or corrected.
    """
    if type(error).__module__.partition(".")[0] != "obstore":
        return
    fault = _fault_of(error, None)
    if isinstance(fault, StoreUnavailable):
        raise fault from None


def _fault_of(error: Exception, seconds: float | None) -> StoreError:
    text = str(error)
    waited = "some" if seconds is None else f"{seconds:.3g}"
    for pattern, kind, fault in _FAULTS:
        if pattern.search(text):
            return kind(f"{_WHO} {fault.format(seconds=waited)}")
    name = type(error).__name__
    return StorageFault(
        f"{_WHO} cannot be read or written ({name}); check the bucket, its options and your"
        " credentials"
    )
