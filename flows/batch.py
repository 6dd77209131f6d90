"""The flow that publishes many releases against one budget."""

from dpdask.flows.batch import privatize_batch

__all__ = ["privatize_batch"]
