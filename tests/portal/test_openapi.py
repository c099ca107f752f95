"""The API's document beside the routes that are served."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema

from portal import schemas
from portal.routes import PREFIX
from tests.portal.conftest import Portal
from tests.portal.fake_engine import FakeEngine
from tests.portal.test_factors import App


async def test_the_document_has_every_route_with_its_scope_and_body(portal: Portal) -> None:
    document = await (await portal.client().request("GET", f"{PREFIX}/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    described = {(method, PREFIX + path) for path, methods in document["paths"].items() for method in methods}
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in portal.control.public.router.routes()
        if route.resource is not None and route.resource.canonical.startswith(PREFIX) and route.method != "HEAD"
    }
    # Without a login or by a form: not part of the table.
    others = {("post", f"{PREFIX}/login"), ("post", f"{PREFIX}/login/oidc"), ("post", f"{PREFIX}/share"), ("get", f"{PREFIX}/openapi.json")}
    others |= {(method, path) for method, path in served if path.endswith("/download")}
    assert served - described == others
    assert described <= served
    for word in ("terminal", "control", "exec"):
        assert "101" in document["paths"][f"/workspaces/{{id}}/{word}"]["get"]["responses"]
    fork = document["paths"]["/workspaces/{id}/fork"]["post"]
    assert fork["x-scope"] == "fork" and fork["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Fork"}
    assert document["components"]["schemas"]["Fork"]["properties"]["copies"]["maximum"] == 8
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
    wanted = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document)))
    assert wanted and wanted <= set(document["components"]["schemas"])


async def _document(portal: Portal) -> dict[str, Any]:
    return await (await portal.client().request("GET", f"{PREFIX}/openapi.json")).json()


async def test_every_answer_and_body_in_json_has_a_schema(portal: Portal) -> None:
    document = await _document(portal)
    bare = [
        (method, path, status)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        for status, answer in operation["responses"].items()
        if not answer.get("content", {}).get("application/json", {"schema": True})["schema"]
    ]
    assert bare == []
    assert [path for path, methods in document["paths"].items() if "computer/" in path and not methods["post"]["requestBody"]["content"]["application/json"]["schema"]] == []
    # Nothing in the table is of a route that there is not.
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {(method, path) for method, path, _ in schemas.ANSWERS} | set(schemas.BODIES) <= routes


async def test_what_is_answered_is_as_the_document_says(portal: Portal, engine: FakeEngine) -> None:
    document = await _document(portal)
    admin = await portal.login()
    engine.add(name="desk")
    engine.add(name="desk-clone", kind="branch", parent="ws-1")
    engine.building("webtop-xfce", phase="fetch")
    checked = set()
    told: dict[tuple[str, str], int] = {}
    asked: list[tuple[str, str, str, Any]] = [
        ("POST", "/users", "", {"user": "anna"}), ("PATCH", "/users/{user}", "/users/anna", {"disabled": True}), ("POST", "/users/{user}/password", "/users/anna/password", None),
        ("POST", "/tokens", "", {"name": "agent", "scopes": ["read"]}), ("POST", "/me/factor", "", None), ("POST", "/workspaces", "", {"image": "workspace"}), ("POST", "/workspaces/{id}/fork", "", {"copies": 2}),
        ("POST", "/workspaces/{id}/fork", "", {"wait": False}), ("POST", "/workspaces/{id}/pause", "/workspaces/ws-2/pause", None), ("POST", "/workspaces/{id}/resume", "/workspaces/ws-2/resume", None),
        ("POST", "/workspaces/{id}/shares", "", {"label": "review"}), ("POST", "/workspaces/{id}/lease", "", {}), ("POST", "/workspaces/{id}/ticket", "", None),
        ("PUT", "/workspaces/{id}/lifetime", "", {"idle_seconds": 600, "lifetime_seconds": None}), ("POST", "/workspaces/{id}/keepalive", "", None),
        ("POST", "/workspaces/{id}/actions", "", {"actions": [{"action": "click", "x": 1, "y": 2}, {"action": "cursor"}]}), ("POST", "/workspaces/{id}/ports/{port}", "/workspaces/ws-1/ports/9100", None),
        ("POST", "/workspaces/{id}/directories", "/workspaces/ws-1/directories?path=/x", None), ("POST", "/workspaces/{id}/promote", "/workspaces/ws-2/promote", {"paths": ["/x"]}), ("POST", "/images/{name}/build", "/images/webtop-xfce/build", None),
        ("POST", "/workspaces/{id}/computer/anthropic", "", schemas.BODIES["POST", "/workspaces/{id}/computer/anthropic"]["examples"][0]),
        ("POST", "/workspaces/{id}/computer/openai", "", schemas.BODIES["POST", "/workspaces/{id}/computer/openai"]["examples"][0]),
        ("POST", "/workspaces/{id}/computer/gemini", "", schemas.BODIES["POST", "/workspaces/{id}/computer/gemini"]["examples"][0]),
    ]  # fmt: skip
    for path in document["paths"]:
        special = {"/workspaces/{id}/diff/file": "/workspaces/ws-2/diff/file?path=/home/user/notes.txt", "/workspaces/{id}/files": "/workspaces/ws-1/files?path=/home/user"}
        asked.append(("GET", path, special.get(path, ""), None))
    for method, path, address, body in asked:
        operation = document["paths"][path].get(method.lower())
        # Files, pictures and streams that stay open are others' matter.
        if operation is None or not any("application/json" in answer.get("content", {}) for status, answer in operation["responses"].items() if status < "400"):
            continue
        answer = await admin.request(method, PREFIX + (address or path.replace("{id}", "ws-1")), body)
        schema = operation["responses"].get(str(answer.status), {}).get("content", {}).get("application/json", {}).get("schema")
        told[method, path] = answer.status
        if answer.status >= 400 or not schema or answer.content_type != "application/json":
            continue
        jsonschema.validate(await answer.json(), {**schema, "components": document["components"]}, cls=jsonschema.Draft202012Validator)
        checked.add((method, path))
    proof = {"code": App(portal, (await (await admin.request("POST", PREFIX + "/me/factor")).json())["secret"]).code()}
    for method, path, body in (("PUT", "/me/factor", proof), ("POST", "/me/factor/recovery", None)):
        answer = await admin.request(method, PREFIX + path, body)
        schema = document["paths"][path][method.lower()]["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(await answer.json(), {**schema, "components": document["components"]}, cls=jsonschema.Draft202012Validator)
        checked.add((method, path))
    table = {(method, path) for method, path, _ in schemas.ANSWERS}
    # Texts and uploads have tests of their own.
    unlike = table - checked - {("GET", "/metrics"), ("GET", "/workspaces/{id}/logs"), ("PUT", "/workspaces/{id}/file")}
    assert {route: told.get(route) for route in unlike} == {}
