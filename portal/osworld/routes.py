"""All routes of one workspace's OSWorld server."""

from __future__ import annotations

from aiohttp import web

from portal.lost import Lost
from portal.osworld.desktop import Desktop
from portal.osworld.execution import Execution
from portal.osworld.files import Files
from portal.osworld.server import Ground


def routes(ground: Ground, workspace: str, lost: Lost[web.Response]) -> list[web.RouteDef]:
    files = Files(ground, workspace)
    return [*Execution(ground, workspace, lost).routes(), *files.routes(), *Desktop(ground, workspace, files).routes()]
