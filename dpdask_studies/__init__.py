"""The experiments of the papers behind dpdask's mechanisms, run through real releases.

This is not library code: baselines here are published methods to compare with, not mechanisms to
release data by. ``dpdask study --list`` shows what there is.
"""
