"""The explorer visits every state within bounds, checks every property, and finds counterexamples."""

from turngate_model.checker.bounds import HEART, Bounds, Limits
from turngate_model.checker.counterexample import Counterexample, Step
from turngate_model.checker.exploration import Exploration, Progress
from turngate_model.checker.explorer import Explorer

__all__ = ["HEART", "Bounds", "Counterexample", "Exploration", "Explorer", "Limits", "Progress", "Step"]
