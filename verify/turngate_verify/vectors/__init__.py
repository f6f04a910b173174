"""Test vectors: programs with everything that may be seen after each operation, for any language.

``minimal`` and ``full`` make the two sets, ``lines`` and ``read`` write and read them, and ``play_vector``
plays one on a subject of the conformance kit. ``turngate vectors`` writes them to a file.
"""

from turngate_verify.vectors.file import VERSION, lines, read
from turngate_verify.vectors.flaws import FLAWS, REFUTABLE, UNSHOWN
from turngate_verify.vectors.playing import Difference, can_play, play_vector
from turngate_verify.vectors.sets import full, minimal
from turngate_verify.vectors.vector import Vector, VectorStep

__all__ = [
    "FLAWS",
    "REFUTABLE",
    "UNSHOWN",
    "VERSION",
    "Difference",
    "Vector",
    "VectorStep",
    "can_play",
    "full",
    "lines",
    "minimal",
    "play_vector",
    "read",
]
