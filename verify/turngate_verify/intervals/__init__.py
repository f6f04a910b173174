"""Judges histories of which only intervals are known: some order must explain them."""

from turngate_verify.intervals.judge import Breach, JudgedHistory, judge, judge_files
from turngate_verify.intervals.lines import BadHistory, History, Line, read
from turngate_verify.intervals.order import Found, Item, search

__all__ = [
    "BadHistory",
    "Breach",
    "Found",
    "History",
    "Item",
    "JudgedHistory",
    "Line",
    "judge",
    "judge_files",
    "read",
    "search",
]
