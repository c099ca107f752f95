"""Routes of an OSWorld server that run something inside: commands, scripts, programs that are started and left."""

from __future__ import annotations

import asyncio
import shlex
from typing import Annotated, Any

import pydantic
from aiohttp import web

from portal.lost import Lost
from portal.osworld.chrome import title_of
from portal.osworld.guest import Done
from portal.osworld.server import Ground, object_of

# As long as OSWorld's own server gives them.
_EXECUTE_SECONDS, _PYTHON_SECONDS = 120.0, 30.0
_CHECK_SECONDS = 5.0
_MOST_SECONDS = 1800.0
_LEAST_INTERVAL = 0.05

Seconds = Annotated[float, pydantic.Field(gt=0, le=_MOST_SECONDS, allow_inf_nan=False)]


class _Body(pydantic.BaseModel):
    """What further fields a client sends is its own affair."""


class Command(_Body):
    """`command`: a list, or a text, which a shell takes as it is and which is split into words without one."""

    command: str | list[str]
    shell: bool = False

    def fields(self) -> dict[str, Any]:
        if self.shell:
            return {"shell": self.command if isinstance(self.command, str) else shlex.join(self.command)}
        return {"argv": shlex.split(self.command) if isinstance(self.command, str) else self.command}

    @pydantic.model_validator(mode="after")
    def _something(self) -> Command:
        # Raises ValueError, which pydantic tells, for quotes that do not end.
        if not next(iter(self.fields().values())):
            raise ValueError("command is empty")
        return self


class Verification(_Body):
    window_exists: str | None = None
    command_success: str | list[str] | None = None


class Verified(Command):
    verification: Verification = Verification()
    max_wait_time: Seconds = 10.0
    check_interval: Seconds = 1.0


class Code(_Body):
    code: str


class Script(_Body):
    script: str
    timeout: Seconds = 30.0
    working_dir: str | None = None


class Execution:
    """`/execute`, `/run_python`, `/run_bash_script`, `/setup/launch` of one workspace."""

    def __init__(self, ground: Ground, workspace: str, lost: Lost[web.Response]) -> None:
        self._ground = ground
        self._workspace = workspace
        self._lost = lost

    def routes(self) -> list[web.RouteDef]:
        once = self._once_for
        both = [("/execute", Command, self._execute), ("/execute_with_verification", Verified, self._execute_verified)]
        return [
            *(web.post(prefix + path, once(model, work)) for path, model, work in both for prefix in ("", "/setup")),
            web.post("/run_python", once(Code, self._python)),
            web.post("/run_bash_script", once(Script, self._bash)),
            web.post("/setup/launch", once(Command, self._launch)),
        ]

    def _once_for(self, model: type[_Body], work: Any) -> Any:
        async def serve(request: web.Request) -> web.StreamResponse:
            body, value = await object_of(request)
            wanted = model.model_validate(value)
            async with self._lost.answer(request, request.path.encode() + b"\0" + body, lambda: work(request, wanted)) as made:
                # A response belongs to the request that it answers: each client gets one of its own.
                response = web.Response(body=made.body, status=made.status, content_type=made.content_type)
                await response.prepare(request)
                await response.write_eof()
            return response

        return serve

    async def _run(self, request: web.Request, command: dict[str, Any]) -> Done:
        return await self._ground.run(request, self._workspace, command)

    async def _execute(self, request: web.Request, wanted: Command) -> web.Response:
        done = await self._run(request, {**wanted.fields(), "seconds": _EXECUTE_SECONDS})
        return web.json_response(_executed(done, _EXECUTE_SECONDS))

    async def _execute_verified(self, request: web.Request, wanted: Verified) -> web.Response:
        """The command, then looks until what it should bring about is there. Status 500 says that it did not come; the command was run all the same."""
        loop = asyncio.get_running_loop()
        answer = _executed(await self._run(request, {**wanted.fields(), "seconds": _EXECUTE_SECONDS}), _EXECUTE_SECONDS)
        begun = loop.time()
        while True:
            checks = await self._checks(request, wanted.verification)
            waited = loop.time() - begun
            if all(check["passed"] for check in checks):
                return web.json_response({**answer, "verification": checks, "wait_time": waited})
            if waited >= wanted.max_wait_time:
                failed = {**answer, "status": "error", "message": f"not there after {waited:.1f} s", "verification": checks, "wait_time": waited}
                return web.json_response(failed, status=500)
            await asyncio.sleep(min(max(_LEAST_INTERVAL, wanted.check_interval), max(0.0, wanted.max_wait_time - waited)))

    async def _checks(self, request: web.Request, wanted: Verification) -> list[dict[str, Any]]:
        checks: list[dict[str, Any]] = []
        if wanted.window_exists is not None:
            titles = [str(window.get("title")) for window in await self._ground.node.windows(self._workspace)]
            passed = any(wanted.window_exists in name for title in titles for name in (title, title_of(title)))
            checks.append({"type": "window_exists", "passed": passed})
        if wanted.command_success is not None:
            command = Command(command=wanted.command_success, shell=isinstance(wanted.command_success, str))
            done = await self._run(request, {**command.fields(), "seconds": _CHECK_SECONDS})
            checks.append({"type": "command_success", "passed": done.returncode == 0 and not done.late})
        return checks

    async def _python(self, request: web.Request, wanted: Code) -> web.Response:
        done = await self._run(request, {"code": wanted.code, "interpreter": ["python3"], "seconds": _PYTHON_SECONDS})
        good = done.returncode == 0 and not done.late
        message = "the code was run" if good else f"not done after {_PYTHON_SECONDS:g} s: it was ended" if done.late else f"it ended with status {done.returncode}"
        answer = {"status": "success" if good else "error", "message": message, "need_more": False, "output": done.output}
        return web.json_response({**answer, "error": done.error or ("" if good else message), "return_code": -1 if done.late else done.returncode})

    async def _bash(self, request: web.Request, wanted: Script) -> web.Response:
        command = {"code": wanted.script, "interpreter": ["/bin/bash"], "seconds": wanted.timeout, "merge": True, "cwd": wanted.working_dir}
        done = await self._run(request, command)
        if done.late:
            error = f"not done after {wanted.timeout:g} s: it was ended"
            return web.json_response({"status": "error", "output": done.output, "error": error, "returncode": -1})
        return web.json_response({"status": "success" if done.returncode == 0 else "error", "output": done.output, "error": "", "returncode": done.returncode})

    async def _launch(self, request: web.Request, wanted: Command) -> web.Response:
        await self._run(request, {**wanted.fields(), "detach": True})
        shown = wanted.command if isinstance(wanted.command, str) else " ".join(wanted.command)
        return web.Response(text=f"{shown[:200]} launched successfully")


def _executed(done: Done, seconds: float) -> dict[str, Any]:
    """200 with whatever came of it: a client takes any other status for leave to run it again."""
    if done.late:
        return {"status": "error", "output": done.output, "error": f"not done after {seconds:g} s: it was ended", "returncode": -1}
    return {"status": "success", "output": done.output, "error": done.error, "returncode": done.returncode}
