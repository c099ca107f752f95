"""A viewer of this desktop's stream, inside, as root: viewer.py SECONDS [SETTINGS as JSON]. It leaves so long after its first picture, and prints what it saw, as JSON:
`sizes` of the stream that it was told, `frames` that it got, whether they still `came` in the last second. Runs under Selkies' Python."""

import asyncio
import base64
import json
import sys
import time

import aiohttp

_BASE = "http://127.0.0.1:8080/api/"
_TOKEN = "a-viewer-of-the-tests"
_PATIENCE = 60.0


async def _let_in(http: aiohttp.ClientSession, table: dict, master: str) -> bool:
    """Whether there is a stream server yet that knows the viewer now."""
    try:
        async with http.post(_BASE + "tokens", json=table, headers={"Authorization": "Bearer " + master}) as answer:
            answer.raise_for_status()
            return True
    except aiohttp.ClientConnectorError:
        return False


async def watch(seconds: float, settings: dict) -> dict:
    with open("/run/tclone/stream-master") as file:
        master = file.read().strip()
    protocol = "selkies.token." + base64.urlsafe_b64encode(_TOKEN.encode()).decode().rstrip("=")
    seen = {"sizes": [], "frames": 0, "came": False}
    async with aiohttp.ClientSession(headers={"Origin": "http://127.0.0.1:8080"}) as http:
        table = {_TOKEN: {"role": "controller", "slot": 1, "mk_control": True}}
        async with asyncio.timeout(_PATIENCE):
            while not await _let_in(http, table, master):
                await asyncio.sleep(0.2)
        async with http.ws_connect(_BASE + "websockets", protocols=["selkies", protocol], max_msg_size=0) as stream:
            # Counted from the first picture: a busy machine takes its time to that.
            end = time.monotonic() + _PATIENCE
            await stream.send_str("SETTINGS," + json.dumps({"displayId": "primary", **settings}))
            await stream.send_str("START_VIDEO")
            while (left := end - time.monotonic()) > 0:
                try:
                    message = await stream.receive(timeout=min(left, 0.2))
                except TimeoutError:
                    await stream.send_str("REQUEST_KEYFRAME")
                    continue
                if message.type is aiohttp.WSMsgType.BINARY and message.data[0] in (3, 4):
                    if not seen["frames"]:
                        left = seconds
                        end = time.monotonic() + seconds
                    seen["frames"] += 1
                    seen["came"] = seen["came"] or left < 1
                    await stream.send_str(f"CLIENT_FRAME_ACK {int.from_bytes(message.data[2:4], 'big')}")
                elif message.type is aiohttp.WSMsgType.TEXT and message.data.startswith("{"):
                    told = json.loads(message.data)
                    if told.get("type") == "stream_resolution":
                        seen["sizes"].append([told["width"], told["height"]])
                elif message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    raise SystemExit(f"the stream closed with {stream.close_code}")
    return seen


print(json.dumps(asyncio.run(watch(float(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}))))
