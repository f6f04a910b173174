"""What is not checked everywhere yet: holds, moves, edits, and prompts for one turn alone.

Dispatchers in memory and on ledgers, and the conformance kit, have them. The proof has conditions for them,
which both solvers prove. No single run of the whole proof has come to *holds* yet, so it does not count for
them, and `turngate verify` says so. When it counts, this module goes.
"""

from __future__ import annotations

from turngate_model.properties import Property

PROPERTIES = frozenset({Property.HELD, Property.AS_EDITED})
"""The properties that are not proved yet."""
UNCHECKED = "the proof for holds, moves, edits and prompts for one turn alone"
"""What `turngate verify` says that it has not checked."""
