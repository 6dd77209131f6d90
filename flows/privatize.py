"""The flow that publishes one release; deploy/prefect.yaml names it, and people copy it to make
their own.
"""

from dpdask.flows.privatize import privatize

__all__ = ["privatize"]
