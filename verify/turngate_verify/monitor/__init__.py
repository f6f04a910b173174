"""Judges a recording while it is being written, in memory bounded by what is in flight."""

from turngate_verify.monitor.following import Tail, TailedFile, TailedStream, tail_of
from turngate_verify.monitor.judge import Accusation, Monitor, Remark
from turngate_verify.monitor.live import follow
from turngate_verify.monitor.metrics import Figures, prometheus_text
from turngate_verify.monitor.session import Shown
from turngate_verify.monitor.window import Window

__all__ = [
    "Accusation",
    "Figures",
    "Monitor",
    "Remark",
    "Shown",
    "Tail",
    "TailedFile",
    "TailedStream",
    "Window",
    "follow",
    "prometheus_text",
    "tail_of",
]
