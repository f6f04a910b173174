"""The README as a package index shows it, where a relative link leads nowhere.

When `[project.urls]` in pyproject.toml has a `Source`, every relative link of the README leads to that file
at the tag of the version. Without it the README stays as it is.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)(\[[^]]*\])\((?![a-z]+:|#)([^)]+)\)")


def absolute(readme: str, source: str, version: str) -> str:
    """Make the relative links of the README absolute: pictures as they are, files as pages to read."""

    def lead(link: re.Match[str]) -> str:
        picture, words, path = link.groups()
        view = "raw" if picture else "blob"
        return f"{picture}{words}({source.rstrip('/')}/{view}/v{version}/{path})"

    return RELATIVE.sub(lead, readme)


class IndexReadme(MetadataHookInterface):
    """Hatchling calls it when it needs to know what the project says of itself."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        if source := metadata.get("urls", {}).get("Source"):
            readme = absolute(readme, source, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}
