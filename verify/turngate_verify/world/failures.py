"""The exceptions that a scripted runner and a scripted store raise on command."""

from __future__ import annotations


class RunnerFailed(Exception):
    """The runner has failed on command."""


class StoreDown(Exception):
    """The store has failed on command."""
