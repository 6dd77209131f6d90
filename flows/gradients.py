"""The flow that releases a stack of training steps' gradients."""

from dpdask.flows.gradients import privatize_gradients

__all__ = ["privatize_gradients"]
