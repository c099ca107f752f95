"""The API's document beside the routes that are served."""

from __future__ import annotations

from portal.routes import PREFIX
from tests.portal.conftest import Portal


async def test_the_document_has_every_route_with_its_scope_and_body(portal: Portal) -> None:
    document = await (await portal.client().request("GET", f"{PREFIX}/openapi.json")).json()
    assert document["openapi"] == "3.1.0"
    described = {(method, PREFIX + path) for path, methods in document["paths"].items() for method in methods}
    served = {
        (route.method.lower(), route.resource.canonical)
        for route in portal.control.public.router.routes()
        if route.resource is not None and route.resource.canonical.startswith(PREFIX) and route.method != "HEAD"
    }
    # Without a login, by a form or as a WebSocket: not part of the table.
    others = {("post", f"{PREFIX}/login"), ("post", f"{PREFIX}/login/oidc"), ("post", f"{PREFIX}/share"), ("get", f"{PREFIX}/openapi.json")}
    unlisted = {(method, path) for method, path in served if path.endswith(("/terminal", "/control", "/exec", "/download"))}
    assert ("post", f"{PREFIX}/workspaces/{{id}}/exec") in described & unlisted
    assert served - described - others == unlisted - described
    assert described <= served
    fork = document["paths"]["/workspaces/{id}/fork"]["post"]
    assert fork["x-scope"] == "fork" and fork["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Fork"}
    assert document["components"]["schemas"]["Fork"]["properties"]["copies"]["maximum"] == 8
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))
