"""The host's own package sources: which mirror, which options, which credentials its apt uses."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from engine.errors import Unavailable

# Options that decide how files are fetched (proxies, certificates, retries). Others, such as where the host keeps its lists, must not leak into a build.
_FETCH_OPTION = re.compile(r"Acquire::((http|https|ftp|Retries|Queue-Mode|ForceIPv4|ForceIPv6|Check-Valid-Until|Max-ValidTime|Min-ValidTime)(::.*)?|.*::(Proxy|Proxy-Auto-Detect))")


@dataclass(frozen=True)
class AptSources:
    """`archive` and `security` are repository URIs; `options` are lines of apt.conf that fetching needs."""

    archive: str
    security: str | None
    signed_by: str | None
    options: tuple[str, ...]

    def lines(self, suite: str, components: tuple[str, ...], *, public: bool = False) -> list[str]:
        """Lines of a sources.list for `suite`. With `public`, without passwords and host paths: fit to stay inside an image."""
        option = f"[signed-by={self.signed_by}] " if self.signed_by and not public else ""
        names = " ".join(components)
        places = [(self.archive, suite), (self.archive, f"{suite}-updates")]
        if self.security is not None:
            places.append((self.security, f"{suite}-security"))
        return [f"deb {option}{without_password(uri) if public else uri} {release} {names}" for uri, release in places]


def without_password(uri: str) -> str:
    """`uri` without its user and password part."""
    parts = urlsplit(uri)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def parse_targets(text: str) -> list[dict[str, str]]:
    """The stanzas that `apt-get indextargets` prints, as dictionaries."""
    stanzas = []
    for block in text.split("\n\n"):
        pairs = (line.partition(": ") for line in block.splitlines() if ":" in line)
        stanza = {key.rstrip(":"): value for key, _, value in pairs}
        if stanza:
            stanzas.append(stanza)
    return stanzas


def choose(stanzas: list[dict[str, str]], options: tuple[str, ...] = ()) -> AptSources:
    """Pick the distribution's archive and security repositories. Raises Unavailable when the host has no archive configured."""
    archive: dict[str, str] | None = None
    security: dict[str, str] | None = None
    for stanza in stanzas:
        # Labels are known only once lists were fetched; third-party repositories then show another origin.
        if stanza.get("Component") != "main" or stanza.get("Origin", "Debian") != "Debian" or not stanza.get("Repo-URI"):
            continue
        release = stanza.get("Release", "")
        if stanza.get("Label") == "Debian-Security" or release.endswith("-security"):
            security = security or stanza
        elif stanza.get("Label", "Debian") == "Debian" and not release.endswith("-backports"):
            archive = archive or stanza
    if archive is None:
        raise Unavailable("no Debian archive among this host's apt sources; configure one and run `apt-get update`")
    return AptSources(
        archive=archive["Repo-URI"].rstrip("/"),
        security=security["Repo-URI"].rstrip("/") if security else None,
        signed_by=archive.get("Signed-By") or None,
        options=options,
    )


def fetch_options(dump: str) -> tuple[str, ...]:
    """The lines of `apt-config dump` that say how to fetch, plus where apt's credentials are."""
    kept = []
    directories = {}
    for line in dump.splitlines():
        name, _, value = line.partition(" ")
        if _FETCH_OPTION.fullmatch(name) and value != '"";':
            kept.append(line)
        directories[name] = value.strip('";')
    etc = Path("/") / directories.get("Dir", "/") / directories.get("Dir::Etc", "etc/apt")
    for name, default in (("Dir::Etc::netrc", "auth.conf"), ("Dir::Etc::netrcparts", "auth.conf.d")):
        path = etc / directories.get(name, default)
        if path.exists():
            kept.append(f'{name} "{path}";')
    return tuple(kept)


async def discover() -> AptSources:
    """Ask the host's apt. Raises Unavailable when there is no apt or no archive."""
    targets = await _output("apt-get", "indextargets", "Created-By: Packages")
    dump = await _output("apt-config", "dump")
    return choose(parse_targets(targets), fetch_options(dump))


async def _output(*argv: str) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise Unavailable(f"{argv[0]} is not installed: images are built from the host's apt sources") from None
    output, _ = await process.communicate()
    if process.returncode != 0:
        raise Unavailable(f"`{' '.join(argv)}` failed with status {process.returncode}; run it by hand to see why")
    return output.decode(errors="replace")
