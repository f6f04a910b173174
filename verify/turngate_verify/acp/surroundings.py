"""What an agent finds around it: a home of its own, and the stub model as every provider."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

_KEY = "turngate"
_THEIRS = ("OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "AZURE_", "AWS_", "XDG_")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def environment(url: str, home: Path, own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of an agent whose models are all at this address, and whose home is this folder.

    Keys, addresses and proxies of the user are left out.
    """
    kept = {name: said for name, said in own.items() if not _is_theirs(name)}
    folders = {
        "HOME": home,
        "USERPROFILE": home,
        "XDG_CONFIG_HOME": home / ".config",
        "XDG_DATA_HOME": home / ".local" / "share",
        "XDG_STATE_HOME": home / ".local" / "state",
        "XDG_CACHE_HOME": home / ".cache",
    }
    models = {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_BASE": f"{url}/v1",
        "OPENAI_API_KEY": _KEY,
        "OPENAI_MODEL": "stub",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": _KEY,
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_API_KEY": _KEY,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    return kept | {name: str(folder) for name, folder in folders.items()} | models


def _is_theirs(name: str) -> bool:
    return name.startswith(_THEIRS) or name.endswith("_API_KEY") or name.lower() in _PROXIES


def made_home(folder: Path, settings: Path | None, url: str) -> Path:
    """Make a home in a folder, with a copy of these settings in it, and return it.

    ``$STUB`` in a settings file stands for the address of the stub model.
    """
    home = folder / "home"
    if settings is None:
        home.mkdir()
        return home
    shutil.copytree(settings, home)
    for file in home.rglob("*"):
        if file.is_file() and b"$STUB" in (said := file.read_bytes()):
            file.write_bytes(said.replace(b"$STUB", url.encode()))
    return home
