"""Where a model answers, by OpenAI's or Anthropic's messages: what is sent there, what comes back, and what is tried again.

AGENT_MODEL_URL    https://…/v1/chat/completions (OpenAI's way) or https://…/v1/messages (Anthropic's)
AGENT_MODEL_NAME   the model
AGENT_MODEL_KEY    the key, where one is needed
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from engine.errors import BadRequest, Unavailable

_SECONDS = 120.0
# Anthropic's way asks for a limit. What is thought before the answer counts, too: it is far more than an answer has.
_MOST_TOKENS = 4096
# The version that every such server knows; what is sent means the same in 2026-10-21.
_VERSION = "2023-06-01"
_MOST_ANSWER = 4 << 20
# Too many requests, a server that is busy, restarting or overloaded (Anthropic's 529).
_PASSING = frozenset({429, 500, 502, 503, 504, 529})
_TRIES, _FIRST_PAUSE, _LONGEST_PAUSE = 4, 1.0, 60.0


@dataclass(frozen=True)
class Endpoint:
    """`anthropic`: by Anthropic's messages, else by OpenAI's chat completions. The key goes into a header and nowhere else."""

    url: str
    name: str
    key: str = field(repr=False)
    anthropic: bool

    @classmethod
    def of_environment(cls, variables: Mapping[str, str] = os.environ) -> Endpoint | None:
        """None without AGENT_MODEL_URL. Raises BadRequest."""
        url, key = variables.get("AGENT_MODEL_URL", ""), variables.get("AGENT_MODEL_KEY", "")
        if not url:
            return None
        if not variables.get("AGENT_MODEL_NAME"):
            raise BadRequest("AGENT_MODEL_URL needs AGENT_MODEL_NAME beside it")
        parts = urlsplit(url)
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise BadRequest("AGENT_MODEL_URL must begin with https:// or http:// and a host")
        anthropic = parts.path.rstrip("/").endswith("/messages")
        if not anthropic and not parts.path.rstrip("/").endswith("/chat/completions"):
            raise BadRequest("AGENT_MODEL_URL must end with /chat/completions or /messages")
        if key and parts.scheme != "https" and not _is_loopback(parts.hostname):
            raise BadRequest("AGENT_MODEL_KEY would be sent without encryption: AGENT_MODEL_URL must be https, or on this machine's loopback")
        return cls(url, variables["AGENT_MODEL_NAME"], key, anthropic)

    def headers(self) -> dict[str, str]:
        if self.anthropic:
            return {"anthropic-version": _VERSION, **({"x-api-key": self.key} if self.key else {})}
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def body(self, question: str, pictures: list[bytes]) -> dict[str, Any]:
        """What is sent: PNG pictures, then the question. OpenAI's newer models refuse the older name of a limit and other servers do not know the newer one: there is none."""
        encoded = [base64.b64encode(picture).decode() for picture in pictures]
        if self.anthropic:
            shown = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}} for data in encoded]
            limit = {"max_tokens": _MOST_TOKENS}
        else:
            shown = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}} for data in encoded]
            limit = {}
        return {"model": self.name, **limit, "messages": [{"role": "user", "content": [*shown, {"type": "text", "text": question}]}]}

    def words(self, answer: Any) -> str:
        """The text of an answer; a model that says nothing (it refuses, or its limit was reached) says "". Raises KeyError, IndexError, TypeError for what is no answer."""
        if self.anthropic:
            parts = [part["text"] for part in answer["content"] if part["type"] == "text"]
        else:
            parts = [answer["choices"][0]["message"]["content"] or ""]
        return "".join(parts)

    async def ask(self, session: aiohttp.ClientSession, question: str, pictures: list[bytes]) -> str:
        """What the model says. A server that is busy is asked again, as late as it wants, a minute at most. Raises Unavailable."""
        body = self.body(question, pictures)
        pause = _FIRST_PAUSE
        for tries_left in reversed(range(_TRIES)):
            status, wait, content = await self._sent(session, body)
            if status == 200:
                return self._told(content)
            if status not in _PASSING or not tries_left:
                raise Unavailable(f"the model at {urlsplit(self.url).hostname} answers with status {status}{_kind(content)}")
            await asyncio.sleep(min(pause if wait is None else wait, _LONGEST_PAUSE))
            pause *= 2
        raise AssertionError("unreachable")

    async def _sent(self, session: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, float | None, bytes]:
        """Status, seconds that the server asks to wait, and content. A redirection is not followed: the key would go to whoever it names."""
        host = urlsplit(self.url).hostname
        try:
            async with session.post(
                self.url, json=body, headers=self.headers(), allow_redirects=False, timeout=aiohttp.ClientTimeout(total=_SECONDS)
            ) as answer:
                content = bytearray()
                async for piece in answer.content.iter_chunked(1 << 16):
                    content += piece
                    if len(content) > _MOST_ANSWER:
                        raise Unavailable(f"the model at {host} answers with more than {_MOST_ANSWER} bytes")
                return answer.status, _seconds(answer.headers.get("Retry-After")), bytes(content)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"the model at {host} does not answer: {type(error).__name__}") from None

    def _told(self, content: bytes) -> str:
        try:
            return self.words(json.loads(content))
        except (KeyError, IndexError, TypeError, ValueError):
            raise Unavailable(f"the answer of the model at {urlsplit(self.url).hostname} is none by {'Anthropic' if self.anthropic else 'OpenAI'}'s messages") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _seconds(text: str | None) -> float | None:
    """Of a Retry-After header in seconds; one with a date is passed over."""
    return float(text) if text is not None and re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) else None


def _kind(content: bytes) -> str:
    """Both kinds of servers name the sort of an error in a word. What else they say may hold the key, so it is not repeated."""
    try:
        kind = json.loads(content)["error"]["type"]
    except (KeyError, TypeError, ValueError):
        return ""
    return f" ({kind})" if isinstance(kind, str) and re.fullmatch(r"[a-z_]{1,60}", kind) else ""
