"""What is not checked everywhere yet: holds, moves, edits, and prompts for one turn alone.

The dispatcher in memory and the conformance kit have them. The proof and the drivers of ledgers do not yet:
what is named here is left out there, and `turngate verify` and `turngate prove` say so. When they have them,
this module goes.
"""

from __future__ import annotations

from turngate_model.designs import LINE_DESIGNS
from turngate_model.properties import Property

PROPERTIES = frozenset({Property.HELD, Property.AS_EDITED})
"""The properties that are not proved yet, and that ledgers and other dispatchers are not held to yet."""
DESIGNS = frozenset(LINE_DESIGNS)
"""The designs that `turngate verify` refutes in the model only; tests look for them in the dispatcher."""
UNCHECKED = "holds, moves, edits and prompts for one turn alone: in the proof, and on ledgers"
"""What `turngate verify` says that it has not checked."""
