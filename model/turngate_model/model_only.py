"""What is checked in the model only, so far: holds, moves, edits, and prompts for one turn alone.

This is the one place that says so. The checks of a dispatcher do not use these operations yet: they leave out
what is named here, and say that they do. When they use them, this module goes.
"""

from __future__ import annotations

from turngate_model.lifecycle import TABLE, Guard
from turngate_model.properties import Property

PROPERTIES = frozenset({Property.HELD, Property.AS_EDITED})
"""The properties that no dispatcher is held to yet."""
ROWS = tuple(row for row in TABLE if Guard.HELD in row.conditions)
"""The rows of the lifecycle by which no run of a dispatcher moves in a check yet."""
UNCHECKED = "holds, moves, edits and prompts for one turn alone, on the dispatchers"
"""What a check of a dispatcher says that it has not checked."""
