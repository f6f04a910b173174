"""The heart of the mechanism once more, by hand, for SPIN and TLC, and what they say beside the explorer."""

from turngate_model.oracles.comparison import Comparison, OracleFailed, OracleMissing, Oracles

__all__ = ["Comparison", "OracleFailed", "OracleMissing", "Oracles"]
