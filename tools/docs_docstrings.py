"""Shows the docstrings of the project as Markdown: lists of parameters, and examples after two colons."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROW = re.compile(r"^( *)(\w[\w, ]*?) {2,}(\S.*)$")
LONE = re.compile(r"^\w+(, \w+)+$")


def as_markdown(text: str) -> str:
    """Turn rows of "name  meaning" into a list, and what follows two colons into a block of code."""
    lines: list[str] = []
    in_row = in_code = False
    for line in text.splitlines():
        if in_code and (not line.strip() or line.startswith("    ")):
            lines.append(line)
            continue
        in_code = False
        row = ROW.match(line)
        if row and not row[1]:
            if not in_row and lines and lines[-1]:
                lines.append("")
            lines.append(f"- {_quoted(row[2])}: {row[3]}")
            in_row = True
        elif LONE.match(line):
            lines.append(f"- {_quoted(line)}:")
            in_row = True
        elif in_row and line.startswith("  "):
            lines.append(f"  {line.strip()}")
        else:
            in_row = False
            if line.endswith("::"):
                in_code = True
            lines.append(
                line.removesuffix(":").removesuffix(":" if line == "::" else "") if in_code else line
            )
    return "\n".join(lines)


def _quoted(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


class PlainDocstrings(Extension):  # type: ignore[misc]
    """Rewrites every docstring before it is shown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of a module, class or function."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
