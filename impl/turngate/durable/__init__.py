"""The same dispatcher on a ledger, for any number of processes: its promises outlive the process."""

from turngate._handles import Run as DurableRun
from turngate._handles import Turn as DurableTurn
from turngate.durable._dispatcher import DurableDispatcher, LedgerMessages
from turngate.durable._ledger import Ledger, LedgerUnavailable, NotStorable, OutcomeUnknown, PurgeCutShort
from turngate.durable._postgres import PostgresLedger
from turngate.durable._sqlite import SqliteLedger
from turngate.durable.feed import LedgerCompletions

__all__ = [
    "DurableDispatcher",
    "DurableRun",
    "DurableTurn",
    "Ledger",
    "LedgerCompletions",
    "LedgerMessages",
    "LedgerUnavailable",
    "NotStorable",
    "OutcomeUnknown",
    "PostgresLedger",
    "PurgeCutShort",
    "SqliteLedger",
]
