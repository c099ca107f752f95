"""The official client of the Model Context Protocol, 1.x, as its users have it: calls as lines on stdin, results as lines on stdout.

Arguments: the address, and a word that is not used. The token comes in the environment.
"""

import asyncio
import json
import os
import sys

import names  # noqa: F401 - names below `localhost` are this machine's
from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['TCLONE_TOKEN']}"}
    async with streamablehttp_client(sys.argv[1], headers=headers) as (reading, writing, _), ClientSession(reading, writing) as client:
        version = (await client.initialize()).protocolVersion
        tools = [tool.name for tool in (await client.list_tools()).tools]
        print(json.dumps({"version": version, "tools": tools}), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            asked = json.loads(line)
            if "uri" in asked:
                part = (await client.read_resource(AnyUrl(asked["uri"]))).contents[0]
                print(json.dumps({"kind": part.mimeType, "blob": getattr(part, "blob", None), "text": getattr(part, "text", None)}), flush=True)
                continue
            result = await client.call_tool(asked["tool"], asked["arguments"])
            images = [[part.mimeType, part.data] for part in result.content if part.type == "image"]
            texts = [part.text for part in result.content if part.type == "text"]
            print(json.dumps({"error": bool(result.isError), "told": result.structuredContent, "images": images, "texts": texts}), flush=True)


asyncio.run(main())
