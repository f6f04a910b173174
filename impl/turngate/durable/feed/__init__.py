"""What a process learns of the ledger, and tells its subscribers.

Moves and RunCompletes are read from the ledger, those of this process too. So all subscribers see one order,
and within a session it is the order of its steps. What the turns of this process write is delivered at once,
but not before everything that was saved before the turn started.

`Feed`               the whole, which a dispatcher has: reads the ledger for the subscriptions
`Delivery`           who receives what, from where on, in which order
`StreamRelay`        what turns stream, from process to process
`LedgerCompletions`  the completions that can be read from any cursor on
"""

from turngate.durable.feed._completions import LedgerCompletions, LedgerCursor
from turngate.durable.feed._delivery import BEHIND
from turngate.durable.feed._feed import Feed

__all__ = ["BEHIND", "Feed", "LedgerCompletions", "LedgerCursor"]
