"""Runs the rules over a network, and the designs that they must find, as one job of ``turngate verify``.

This module can be imported without the extras of the client and the server; the rules cannot.
"""

from __future__ import annotations

from typing import NamedTuple

from turngate_verify.drivers.network_found import NetworkRules


class NetworkChecked(NamedTuple):
    """The result of the rules, and the designs that their programs find."""

    rules: NetworkRules | None
    found: dict[str, str]
    """For each design, what was found to be wrong; empty if it was not found."""
    lacking: str = ""
    """What is not installed, if the check could not be made."""


def check_network(examples: int, *, has_ledger: bool) -> NetworkChecked:
    """Run the rules with a ledger or without one, and find the designs that need it."""
    try:
        from turngate_verify.drivers.network_rules import run_network_rules  # noqa: PLC0415 - with the extras
        from turngate_verify.drivers.network_sabotage import (  # noqa: PLC0415
            NETWORK_SABOTAGES,
            play_sabotage,
        )
    except ModuleNotFoundError as lacking:
        return NetworkChecked(None, {}, f"{lacking.name} is not installed")
    rules = run_network_rules(examples, has_ledger=has_ledger)
    [name for name, each in NETWORK_SABOTAGES.items() if each.has_ledger == has_ledger]
    found: dict[str, str] = {}
    for name, sabotage in NETWORK_SABOTAGES.items():
        if sabotage.has_ledger == has_ledger:
            without, within = play_sabotage(name)
            found[name] = within[0] if within and not without else ""
    return NetworkChecked(rules, found)
