"""The file of an SQLite database: what is refused at the beginning, and what is noticed later."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dispatching import in_loop
from turngate import Message, SqliteMessages
from turngate._sqlite_file import OpenedFile, UnusableFile, absolute, check_usable


def opened(path: Path, given: Path | None = None) -> OpenedFile:
    path.write_text("data")
    Path(f"{path}-wal").write_text("log")
    file = OpenedFile(os.fspath(given or path), path)
    assert file.problem() is None
    return file


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a file is needed"):
        absolute("")
    with pytest.raises(UnusableFile, match="does not exist"):
        check_usable(tmp_path / "nowhere" / "file")
    with pytest.raises(UnusableFile, match="a ~ is not expanded"):
        check_usable(Path("~") / "nowhere" / "file")
    with pytest.raises(UnusableFile, match="not a regular file"):
        check_usable(tmp_path)
    one = tmp_path / "one"
    one.write_text("data")
    os.link(one, tmp_path / "two")
    with pytest.raises(UnusableFile, match="2 hard links"):
        check_usable(one)


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("other data")
    other.rename(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (replace, "was replaced by another file"),
        (lambda path: path.write_text(""), "was emptied"),
        (lambda path: path.unlink(), "was removed or renamed"),
        (lambda path: Path(f"{path}-wal").unlink(), "-wal was removed or replaced"),
        (lambda path: replace(Path(f"{path}-wal")), "-wal was removed or replaced"),
    ],
)
def test_a_file_that_changes_under_its_user_is_noticed(
    tmp_path: Path, change: Callable[[Path], object], told: str
) -> None:
    file = opened(tmp_path / "file")
    change(tmp_path / "file")
    assert told in (file.problem() or "")


def test_a_link_that_leads_elsewhere_is_noticed(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    file = opened(tmp_path / "file", link)
    link.unlink()
    (tmp_path / "other").write_text("other data")
    link.symlink_to(tmp_path / "other")
    assert "no longer leads to" in (file.problem() or "")


@pytest.mark.parametrize("hidden", ["file", "file-wal"])
def test_what_cannot_be_looked_at_is_no_problem(
    tmp_path: Path, hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = opened(tmp_path / "file")
    stat = os.stat

    def refuses(path: Any, *args: Any, **options: Any) -> os.stat_result:
        if os.fspath(path) == os.fspath(tmp_path / hidden):
            raise PermissionError(13, "Permission denied", path)
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", refuses)
    assert file.problem() is None


@in_loop
async def test_messages_are_refused_once_the_file_was_replaced(tmp_path: Path) -> None:
    message = Message("id", "s", "r", "user", "text", None, None)
    async with SqliteMessages(tmp_path / "messages.db") as store:
        await store.put([message])
        replace(tmp_path / "messages.db")
        for _ in range(2):
            with pytest.raises(OSError, match="was replaced by another file"):
                await store.put([message])
