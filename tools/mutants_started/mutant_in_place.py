"""Loads a mutant where its module is asked for; `TURNGATE_MUTANT` has the module's name and the file."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path
from types import ModuleType

NAME, _, SOURCE = os.environ["TURNGATE_MUTANT"].partition("=")


class InPlace(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module, and loads another source."""

    def find_spec(
        self, name: str, _path: object, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == NAME else None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(Path(SOURCE).read_text(), f"<mutant of {NAME}>", "exec"), module.__dict__)


sys.meta_path.insert(0, InPlace())
