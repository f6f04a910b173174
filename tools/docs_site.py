"""Lets the pages of docs/ and those beside it link to each other, in the repository and on the site.

MkDocs knows the files of one folder. This hook adds the pages and pictures at the top level, and rewrites
links: a path that is right in the repository becomes one that is right on the site. A folder is no page,
so a link to one becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("SPEC.md", "GALLERY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FOLDERS = ("diagrams", "pictures", "examples", "vectors")
LINK = re.compile(r"(?<!`)(\]\()(?![a-z]+:|#)([^)\s#]+)")
FOLDER = re.compile(r"\[([^]]+)\]\((?![a-z]+:)[^)\s]+/\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is linked to and is not in docs/."""
    found = [ROOT / page for page in PAGES]
    for folder in FOLDERS:
        paths = sorted((ROOT / folder).rglob("*"))
        found += [path for path in paths if path.is_file() and "node_modules" not in path.parts]
    for path in found:
        uri = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    files.append(File.generated(config, "LICENSE", abs_src_path=str(ROOT / "LICENSE")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn paths of the repository into paths of the site."""
    uri = page.file.src_uri
    in_docs = uri not in PAGES
    folder = posixpath.dirname(f"docs/{uri}" if in_docs else uri)

    def on_site(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[2]))
        on_site = target.removeprefix("docs/")
        return link[1] + posixpath.relpath(on_site, posixpath.dirname(uri) or ".")

    return LINK.sub(on_site, FOLDER.sub(r"\1", markdown))
