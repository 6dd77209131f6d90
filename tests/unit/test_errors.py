"""Redaction: the one way an exception leaves code that holds data."""

from __future__ import annotations

import traceback

import pytest

from dpdask.errors import (
    DpdaskError,
    InvalidSpec,
    ReleaseError,
    StoreError,
    redact_exceptions,
)

SECRET = "31415926"


@redact_exceptions(ReleaseError, "a task failed ({kind}); try again")
def fails(error: BaseException) -> None:
    held = SECRET
    raise error from ValueError(held)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError(SECRET), ReleaseError, "a task failed (ValueError); try again"),
        (KeyError(SECRET), ReleaseError, "a task failed (KeyError); try again"),
        (InvalidSpec("our text"), InvalidSpec, "our text"),
        (MemoryError(SECRET), ReleaseError, "a worker ran out of memory"),
    ],
)
def test_nothing_of_the_original_error_leaves(
    error: Exception, kind: type[DpdaskError], text: str
) -> None:
    with pytest.raises(DpdaskError) as caught:
        fails(error)
    redacted = caught.value
    assert type(redacted) is kind
    assert str(redacted).startswith(text)
    assert redacted.__cause__ is None
    assert redacted.__context__ is None
    assert SECRET not in "".join(traceback.format_exception(redacted))


def test_frames_of_the_decorated_function_are_not_in_the_traceback() -> None:
    with pytest.raises(ReleaseError) as caught:
        fails(ValueError(SECRET))
    frames = [frame for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert "fails" not in [frame.f_code.co_name for frame in frames]
    exits = [frame for frame in frames if frame.f_code.co_name == "__exit__"]
    assert exits
    for frame in exits:
        assert not any(isinstance(value, ValueError) for value in frame.f_locals.values())


def fails_while_handling_another_error() -> None:
    try:
        raise KeyError(SECRET)
    except KeyError:
        with redact_exceptions(StoreError, "the group cannot be read ({kind})"):
            raise OSError(SECRET) from None


def test_it_clears_the_context_of_an_error_that_is_being_handled() -> None:
    with pytest.raises(StoreError, match=r"cannot be read \(OSError\)") as caught:
        fails_while_handling_another_error()
    assert caught.value.__context__ is None


def test_interrupts_and_errors_that_are_not_to_be_caught_pass_unchanged() -> None:
    with pytest.raises(KeyboardInterrupt):
        fails(KeyboardInterrupt())
    error = ZeroDivisionError("not listed")
    with (
        pytest.raises(ZeroDivisionError) as caught,
        redact_exceptions(StoreError, "({kind})", (OSError,)),
    ):
        raise error
    assert caught.value is error
