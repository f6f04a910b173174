"""What is not checked everywhere yet: holds, moves, edits, and prompts for one turn alone.

The dispatcher in memory is held to them, and the proof has them. The witness of the durable explorer and
the conformance kit do not look at PROPERTIES yet. `turngate verify` puts none of DESIGNS into the real
dispatcher, and says that UNCHECKED is left out. When they have them, this module goes.
"""

from __future__ import annotations

from turngate_model.designs import LINE_DESIGNS
from turngate_model.properties import Property

PROPERTIES = frozenset({Property.HELD, Property.AS_EDITED})
"""The properties that ledgers and other dispatchers are not held to yet."""
DESIGNS = frozenset(LINE_DESIGNS)
"""The designs that `turngate verify` refutes in the model only; tests look for them in the dispatcher."""
UNCHECKED = "holds, moves, edits and prompts for one turn alone: on ledgers"
"""What `turngate verify` says that it has not checked."""
