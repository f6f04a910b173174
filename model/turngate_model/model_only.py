"""What is not checked everywhere yet: holds, moves, edits, and prompts for one turn alone.

The dispatcher in memory is held to them. The model of processes, the ledgers and the conformance kit do not
have them yet: what is named here is left out there, and `turngate verify` says so. When they have them, this
module goes.
"""

from __future__ import annotations

from turngate_model.designs import LINE_DESIGNS
from turngate_model.properties import Property

PROPERTIES = frozenset({Property.HELD, Property.AS_EDITED})
"""The properties that ledgers and other people's dispatchers are not held to yet."""
DESIGNS = frozenset(LINE_DESIGNS)
"""The known-bad designs that are not built into a dispatcher yet."""
UNCHECKED = "holds, moves, edits and prompts for one turn alone, on ledgers"
"""What `turngate verify` says that it has not checked."""
