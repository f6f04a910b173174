"""The explorer: every state within bounds, every property in every state, the shortest counterexample."""

from turngate_model.checker.counterexample import Counterexample, Step
from turngate_model.checker.explorer import HEART, Bounds, Exploration, Explorer, Progress, SearchLimits

__all__ = ["HEART", "Bounds", "Counterexample", "Exploration", "Explorer", "Progress", "SearchLimits", "Step"]
