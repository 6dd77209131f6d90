"""Releases: plan, charge, write, verify, publish; read and verify what is published."""
