"""The pictures and tables that are generated from the model, committed, and checked."""

from turngate_model.pictures.diagrams import (
    Generated,
    generate,
    lifecycle_svg,
    refute,
    sequence_svg,
    stale,
    write,
)

__all__ = ["Generated", "generate", "lifecycle_svg", "refute", "sequence_svg", "stale", "write"]
