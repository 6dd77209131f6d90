"""Prefect flows over releases: one, many, recurring, and stacks of steps.

The only package that imports Prefect.
"""

import os

# Nothing leaves this machine without consent, and the first start of the embedded server gets the
# time it needs.
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
