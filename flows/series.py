"""The flow that releases what is new in a growing array, one window per run."""

from dpdask.flows.series import privatize_series

__all__ = ["privatize_series"]
