"""A command shows its own progress only."""

from __future__ import annotations

from typing import Any

from engine.cli.workspaces import _Filter


def _progress(workspace: str, operation: str = "fork") -> dict[str, Any]:
    return {"type": "progress", "workspace": workspace, "data": {"operation": operation, "phase": "frozen"}}


def test_a_fork_by_name_shows_its_own_phases() -> None:
    mine = _Filter("fork", "desk")
    assert not mine.shows({"type": "snapshot", "workspaces": [{"id": "ws-1", "name": "other"}, {"id": "ws-2", "name": "desk"}]})
    assert mine.shows(_progress("ws-2"))
    assert not mine.shows(_progress("ws-1"))
    assert not mine.shows(_progress("ws-2", "launch"))


def test_a_named_launch_learns_its_id_when_the_workspace_appears() -> None:
    mine = _Filter("launch", "desk")
    assert not mine.shows({"type": "workspace", "workspace": "ws-7", "data": {"id": "ws-7", "name": "desk"}})
    assert mine.shows(_progress("ws-7", "launch"))
    assert not mine.shows(_progress("ws-8", "launch"))


def test_a_launch_without_a_name_shows_all_launches() -> None:
    assert _Filter("launch", None).shows(_progress("ws-7", "launch"))
