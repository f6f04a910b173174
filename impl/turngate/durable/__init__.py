"""The promises outlive the process: the same dispatcher on a ledger, for any number of processes."""

from turngate.durable._dispatcher import DurableDispatcher, LedgerMessages
from turngate.durable._following import LedgerCompletions
from turngate.durable._handles import DurableRun, DurableTurn
from turngate.durable._ledger import Ledger, LedgerUnavailable, NotStorable, OutcomeUnknown, PurgeCutShort
from turngate.durable._postgres import PostgresLedger
from turngate.durable._sqlite import SqliteLedger

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
