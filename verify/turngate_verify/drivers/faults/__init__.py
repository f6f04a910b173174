"""Faults: everything that can go wrong around a dispatcher, one fault at a time, at every possible point.

A driver plays each scenario in plain order, again and again, and each time
spoils it at one point: it cancels a task after a step, lets a write fail, has a
callback raise, interrupts the process, or shuts the loop down. After every such
injection four things must hold: every run has its one RunComplete, the queue
goes on, no task is left behind, and Python warns of nothing.

The injections of a scenario are numbered, so that one of them can be made again
alone.

- scenarios: what is played, and the kinds of faults
- world: a world that raises where it is told to
- play: one scenario, spoiled once
- trials: one numbered injection, and what must hold after it
- injections: every injection into a scenario
- search: all scenarios, or one injection again
- found: the result
"""

from __future__ import annotations

from turngate_verify.drivers.faults.found import FaultFound, Faults
from turngate_verify.drivers.faults.scenarios import KINDS, SPOILED
from turngate_verify.drivers.faults.search import inject_faults, replay_fault

__all__ = ["KINDS", "SPOILED", "FaultFound", "Faults", "inject_faults", "replay_fault"]
