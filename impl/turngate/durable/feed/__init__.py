"""What a process reads from the ledger and delivers to its subscribers.

Decisions and RunCompletes are read from the ledger, including those of this process. So all subscribers see
the same order, and within a session it is the order of its steps. What the turns of this process write is
delivered at once, but after everything that was saved before the turn started.

`Feed`               the whole, which a dispatcher has: reads the ledger for the subscriptions
`Delivery`           decides which subscription receives what, from which point on, in which order
`StreamRelay`        carries what turns stream from process to process
`Start`              where a subscription begins, in terms of the completions
`LedgerCompletions`  the completions, which can be read from any cursor on
"""

from turngate.durable.feed._completions import LedgerCompletions, LedgerCursor
from turngate.durable.feed._delivery import BEHIND
from turngate.durable.feed._feed import Feed, Start

__all__ = ["BEHIND", "Feed", "LedgerCompletions", "LedgerCursor", "Start"]
