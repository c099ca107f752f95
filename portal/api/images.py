"""Images: which there are, and building one."""

from __future__ import annotations

from aiohttp import web

from portal import audit
from portal.builds import Builds
from portal.principal import Scope
from portal.routes import HEAVY, Call, Route


class Images:
    """`/images`."""

    def __init__(self, builds: Builds) -> None:
        self._builds = builds

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/images", Scope.READ, self._list, "Images, built or not, with builds under way", answers={200: "a list"}),
            Route("POST", "/images/{name}/build", Scope.ADMIN, self._build, "Begin to build an image", answers={202: "progress comes by /ws"}, once="memory", cost=HEAVY),
        ]

    async def _list(self, _: Call) -> web.Response:
        return web.json_response(await self._builds.list())

    async def _build(self, call: Call) -> web.Response:
        name = call.request.match_info["name"]
        await self._builds.start(name)
        audit.record("build", user=call.principal.user, token=call.principal.token, image=name)
        return web.json_response({"image": name}, status=202)
