"""The exceptions that a scripted runner and a scripted store raise when they are told to fail."""

from __future__ import annotations


class RunnerFailed(Exception):
    """The runner has failed, because it was told to."""


class StoreDown(Exception):
    """The store could not write, because it was told to fail."""
