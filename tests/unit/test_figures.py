"""Numbers have three significant digits for people."""

from __future__ import annotations

import math

import pytest

from dpdask.figures import number_text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0123456, "0.0123"),
        (0.10, "0.1"),
        (1.0, "1"),
        (9.999, "10"),
        (-3.14159, "-3.14"),
        (123.456, "123"),
        (999.6, "1000"),
        (12345.6, "12300"),
        (9_999_999.0, "10000000"),
        (1.2345e7, "1.23e+07"),
        (1.2345e-5, "1.23e-05"),
        (0.0, "0"),
        (math.inf, "inf"),
    ],
)
def test_a_number_is_rounded_to_three_digits(number: float, text: str) -> None:
    assert number_text(number) == text
