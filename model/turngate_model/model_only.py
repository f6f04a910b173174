"""What is not checked everywhere yet: holds, moves, edits, and prompts for one turn alone.

Dispatchers in memory and on ledgers, and the conformance kit, have them. The proof does not have them yet:
what is named here is left out there, and `turngate verify` and `turngate prove` say so. When they have them,
this module goes.
"""

from __future__ import annotations

from turngate_model.properties import Property

PROPERTIES = frozenset({Property.HELD, Property.AS_EDITED})
"""The properties that are not proved yet."""
UNCHECKED = "the proof for holds, moves, edits and prompts for one turn alone"
"""What `turngate verify` says that it has not checked."""
