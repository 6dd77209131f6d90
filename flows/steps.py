"""The flow that releases the steps of a training run as they come."""

from dpdask.flows.sessions import privatize_steps

__all__ = ["privatize_steps"]
