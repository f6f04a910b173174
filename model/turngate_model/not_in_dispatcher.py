"""What the model has and the dispatchers do not have yet: holds, moves, edits, and prompts for one turn.

This is the one place that says so. A check of a dispatcher leaves out what is named here, and says that it
does. When the dispatchers have it, this module goes, and the checks are about everything.
"""

from __future__ import annotations

from turngate_model.lifecycle import TABLE, Guard
from turngate_model.properties import Property

PROPERTIES = frozenset({Property.HELD, Property.AS_EDITED})
"""The properties that no dispatcher is held to yet."""
ROWS = tuple(row for row in TABLE if Guard.HELD in row.conditions)
"""The rows of the lifecycle by which no run of a dispatcher moves yet."""
UNCHECKED = "holds, moves, edits and prompts for one turn alone: the model has them, the dispatchers not yet"
"""What a check of a dispatcher says that it has not checked."""
