"""The same workspace as the tests of releases."""

from tests.release.conftest import space

__all__ = ["space"]
