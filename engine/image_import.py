"""Import images made elsewhere: an OCI image layout directory, or a tar of a root file system."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import shlex
import stat
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine import image_unpack
from engine.config import Config
from engine.errors import BadRequest, Internal, NoSpace, NotFound
from engine.image_process import run_confined
from engine.image_recipe import valid_name
from engine.images import Image, ImageStore, Progress, ProgressClock

# An index, manifest or configuration above this is not one; real ones are a few KiB.
_JSON_BYTES = 4 << 20
_MOST_LAYERS = 128
_NESTED_INDEXES = 4
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}

# First bytes of a stream, and the program that undoes the compression.
_COMPRESSIONS = (
    (b"\x28\xb5\x2f\xfd", "zstd -q -d -c --memory=512MB"),
    (b"\x1f\x8b", "gzip -d -c"),
    (b"\xfd7zXZ\x00", "xz -d -c --memlimit-decompress=512MiB"),
    (b"BZh", "bzip2 -d -c"),
)
# An archive without a configuration runs nothing by itself: commands are started with `tclone exec` or `tclone run IMAGE COMMAND`.
_IDLE = ["/bin/sh", "-c", "while :; do sleep 3600; done"]


async def import_image(path: Path, name: str, config: Config, progress: Progress, limits: image_unpack.Limits | None = None) -> Image:
    """Import `path` under `name`; phases of `progress`: `wait`, `read`, `unpack`, `import`.

    Raises NotFound (no such path), BadRequest (not an image, hostile, for another machine), NoSpace, Internal. Nothing is kept
    of an import that fails. The same content imported again is found, not unpacked twice.
    """
    valid_name(name)
    importer = _Importer(name, config, ProgressClock(progress), limits or image_unpack.Limits())
    if not path.exists():
        raise NotFound(f"nothing to import at {path}")
    async with importer.store.lock(name, importer.clock):
        await asyncio.to_thread(importer.store.clean, name)
        if path.is_dir():
            return await importer.layout(path)
        return await importer.archive(path)


@dataclass(frozen=True)
class _Layer:
    """An open archive, its digest known to be right."""

    fd: int
    label: str


class _Importer:
    def __init__(self, name: str, config: Config, clock: ProgressClock, limits: image_unpack.Limits) -> None:
        self.name = name
        self.store = ImageStore(config)
        self.clock = clock
        self.limits = limits

    async def archive(self, path: Path) -> Image:
        with _opened(path) as fd:
            self.clock("read", path.name)
            content = await asyncio.to_thread(_sha256, fd)
            settings = {"entrypoint": _IDLE, "env": {}, "workdir": "/", "desktop": None, "ports": []}
            return await self._make(self._digest(content), [_Layer(fd, path.name)], settings)

    async def layout(self, path: Path) -> Image:
        layout = _Layout(path)
        with contextlib.ExitStack() as stack:
            self.clock("read", "manifest")
            manifest, digest = await asyncio.to_thread(layout.manifest)
            settings = _settings(await asyncio.to_thread(layout.json, _table(manifest, "config")))
            layers = manifest.get("layers")
            if not isinstance(layers, list) or not 0 < len(layers) <= _MOST_LAYERS:
                raise BadRequest(f"{path} has no layers, or more than {_MOST_LAYERS}")
            opened = []
            for number, descriptor in enumerate(layers, 1):
                self.clock("read", f"layer {number} of {len(layers)}")
                fd = stack.enter_context(layout.blob(descriptor))
                await asyncio.to_thread(layout.verify, fd, descriptor)
                opened.append(_Layer(fd, f"layer {number} of {len(layers)}"))
            return await self._make(self._digest(digest), opened, settings)

    def _digest(self, content: str) -> str:
        # The name belongs to it: one archive imported as two images makes two, each removed on its own.
        return hashlib.sha256(f"tclone-import\0{self.name}\0{content}".encode()).hexdigest()

    async def _make(self, digest: str, layers: list[_Layer], settings: dict[str, Any]) -> Image:
        if self.store.has(digest):
            return self.store.get(digest)
        stage = await asyncio.to_thread(self.store.new_stage, self.name)
        try:
            for layer in layers:
                self.clock("unpack", layer.label)
                await self._unpack(layer, stage / "rootfs")
            root = stage / "rootfs"
            if not any(os.path.lexists(root / folder) for folder in ("bin", "usr", "sbin", "lib")):
                raise BadRequest(f"{self.name}: no root file system in it; what `docker save` writes must be turned into an OCI layout first")
            self.clock("import", "")
            await asyncio.to_thread(self.store.describe, stage, self.name, digest, settings)
            return await asyncio.to_thread(self.store.publish, stage, digest)
        finally:
            await asyncio.to_thread(self.store.discard, stage)

    async def _unpack(self, layer: _Layer, root: Path) -> None:
        os.lseek(layer.fd, 0, os.SEEK_SET)
        decompress = _decompressor(os.pread(layer.fd, 8, 0))
        unpack = shlex.join([sys.executable, "-I", "-B", image_unpack.__file__, str(root), json.dumps(asdict(self.limits))])
        lines: list[str] = []
        await run_confined(
            ["bash", "-c", f'{decompress} | {unpack}; s=("${{PIPESTATUS[@]}}"); echo "decompressor ${{s[0]}}"; exit "${{s[1]}}"'],
            f"unpacking {layer.label} of {self.name}",
            lines.append,
            network=False,
            stdin=layer.fd,
        )
        answers = [line for line in lines if line.startswith("{")]
        if not answers:
            raise Internal(f"unpacking {layer.label} of {self.name} ended without an answer: {' '.join(lines)[:400]}")
        answer = json.loads(answers[-1])
        if "full" in answer:
            raise NoSpace(f"no space left while unpacking {layer.label} of {self.name} ({answer['full']}); remove images or workspaces")
        if "bad" in answer:
            raise BadRequest(f"{layer.label} of {self.name} is not a usable archive: {answer['bad']}")
        if lines[-1] != "decompressor 0":
            raise BadRequest(f"{layer.label} of {self.name} is damaged: {' '.join(lines)[:400]}")


class _Layout:
    """An OCI image layout directory. Nothing in it is believed: blobs are opened without following links, and hashed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def manifest(self) -> tuple[dict[str, Any], str]:
        """The image manifest for this machine and its digest."""
        with _opened(self.path / "index.json") as fd:
            document = _parse(_bounded(fd, self.path / "index.json"), "index.json")
        machine = _MACHINES.get(os.uname().machine, os.uname().machine)
        for _ in range(_NESTED_INDEXES):
            descriptor = self._choose(document, machine)
            document = self.json(descriptor)
            if "manifests" not in document:
                return document, _hex(descriptor)
        raise BadRequest(f"{self.path}: indexes are nested more than {_NESTED_INDEXES} deep")

    def _choose(self, index: dict[str, Any], machine: str) -> dict[str, Any]:
        manifests = index.get("manifests")
        if not isinstance(manifests, list) or not all(isinstance(entry, dict) for entry in manifests):
            raise BadRequest(f"{self.path} is not an OCI image layout: index.json lists no manifests")
        for entry in manifests:
            platform = entry.get("platform")
            if not isinstance(platform, dict) or (platform.get("os"), platform.get("architecture")) == ("linux", machine):
                return entry
        raise BadRequest(f"{self.path} has no image for linux/{machine}")

    def json(self, descriptor: dict[str, Any]) -> dict[str, Any]:
        with self.blob(descriptor) as fd:
            content = _bounded(fd, self.path)
        if hashlib.sha256(content).hexdigest() != _hex(descriptor):
            raise BadRequest(f"{self.path}: blob {_hex(descriptor)[:12]} is damaged, its digest is another")
        return _parse(content, f"blob {_hex(descriptor)[:12]}")

    @contextlib.contextmanager
    def blob(self, descriptor: Any) -> Iterator[int]:
        with _opened(self.path / "blobs" / "sha256" / _hex(descriptor)) as fd:
            yield fd

    def verify(self, fd: int, descriptor: Any) -> None:
        if _sha256(fd) != _hex(descriptor):
            raise BadRequest(f"{self.path}: layer {_hex(descriptor)[:12]} is damaged, its digest is another")


def _decompressor(start: bytes) -> str:
    return next((command for magic, command in _COMPRESSIONS if start.startswith(magic)), "cat")


def _hex(descriptor: Any) -> str:
    match = _DIGEST.fullmatch(str(descriptor.get("digest", ""))) if isinstance(descriptor, dict) else None
    if match is None:
        raise BadRequest("a descriptor in the OCI layout has no sha256 digest")
    return match[1]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A regular file's descriptor. O_NONBLOCK: a pipe put there instead must not hang the engine."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise BadRequest(f"{path} is missing; is this an OCI image layout or a tar archive?") from None
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise BadRequest(f"{path} is not a regular file")
        yield fd
    finally:
        os.close(fd)


def _sha256(fd: int) -> str:
    digest = hashlib.sha256()
    position = 0
    while chunk := os.pread(fd, 1 << 20, position):
        digest.update(chunk)
        position += len(chunk)
    return digest.hexdigest()


def _bounded(fd: int, path: Path) -> bytes:
    if os.fstat(fd).st_size > _JSON_BYTES:
        raise BadRequest(f"{path}: a description larger than {_JSON_BYTES} bytes")
    return os.pread(fd, _JSON_BYTES, 0)


def _parse(content: bytes, what: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise BadRequest(f"{what} of the OCI layout is not valid JSON") from None
    if not isinstance(document, dict):
        raise BadRequest(f"{what} of the OCI layout is not a JSON object")
    return document


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    if not isinstance(value, dict):
        raise BadRequest(f"the OCI layout's manifest has no {key}")
    return value


def _settings(configuration: dict[str, Any]) -> dict[str, Any]:
    """image.json's fields from an OCI image configuration."""
    config = configuration.get("config") or {}
    if not isinstance(config, dict):
        raise BadRequest("the OCI image's configuration is malformed")

    def words(key: str) -> list[str]:
        value = config.get(key) or []
        if not isinstance(value, list) or not all(isinstance(word, str) and "\0" not in word for word in value):
            raise BadRequest(f"the OCI image's {key} is malformed")
        return value

    ports = config.get("ExposedPorts") or {}
    numbers = sorted(int(port.partition("/")[0]) for port in ports if re.fullmatch(r"\d{1,5}(/tcp)?", port))
    workdir = config.get("WorkingDir") or "/"
    if not isinstance(workdir, str) or not workdir.startswith("/") or "\0" in workdir:
        raise BadRequest("the OCI image's WorkingDir is not an absolute path")
    return {
        "entrypoint": words("Entrypoint") + words("Cmd") or _IDLE,
        "env": dict(pair.split("=", 1) for pair in words("Env") if "=" in pair),
        "workdir": workdir,
        "desktop": None,
        "ports": [number for number in numbers if 0 < number < 65536],
    }
