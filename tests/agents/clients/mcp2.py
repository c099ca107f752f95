"""The official client of the Model Context Protocol, 2.x, as its users have it: calls as lines on stdin, results as lines on stdout.

Arguments: the address, and the mode (`auto`: the modern protocol; `legacy`: the handshake). The token comes in the environment.
"""

import asyncio
import json
import os
import sys

import httpx2
import names  # noqa: F401 - names below `localhost` are this machine's
from mcp import Client
from mcp.client.streamable_http import streamable_http_client


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['TCLONE_TOKEN']}"}
    async with httpx2.AsyncClient(headers=headers, timeout=300) as web:
        async with Client(streamable_http_client(sys.argv[1], http_client=web), mode=sys.argv[2]) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            print(json.dumps({"version": client.protocol_version, "tools": tools}), flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                asked = json.loads(line)
                if "uri" in asked:
                    part = (await client.read_resource(asked["uri"])).contents[0]
                    print(json.dumps({"kind": part.mime_type, "blob": getattr(part, "blob", None), "text": getattr(part, "text", None)}), flush=True)
                    continue
                result = await client.call_tool(asked["tool"], asked["arguments"])
                images = [[part.mime_type, part.data] for part in result.content if part.type == "image"]
                texts = [part.text for part in result.content if part.type == "text"]
                print(json.dumps({"error": bool(result.is_error), "told": result.structured_content, "images": images, "texts": texts}), flush=True)


asyncio.run(main())
