"""Recipes: the declarative folders under `images/` that image builds start from (images/README.md describes the format)."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import BadRequest, NotFound

# Part of every digest: raise it when the builder itself changes what ends up in an image.
BUILDER_VERSION = "1"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+")
_SUITE = re.compile(r"[a-z]+")
# Documentation and editor droppings do not change an image, so they do not change its digest.
_IGNORED_NAMES = {"README.md", "__pycache__"}


def is_valid_name(name: str) -> bool:
    """Whether `name` can name an image."""
    return _NAME.fullmatch(name) is not None


def valid_name(name: str) -> str:
    """`name` itself when it can name an image; raises BadRequest otherwise."""
    if not is_valid_name(name):
        raise BadRequest(f"image name {name!r} is not valid: use lower-case letters, digits, '.', '_' and '-', at most 63")
    return name


@dataclass(frozen=True)
class PythonSpec:
    """Wheels to install offline: `lock` is a pinned, hashed requirements file; `prefix` the virtual environment's absolute path."""

    prefix: str
    version: str
    lock: Path


@dataclass(frozen=True)
class Recipe:
    """One validated recipe. Paths in `exclude`, `include_paths` and `remove` are absolute inside the image."""

    name: str
    directory: Path
    suite: str
    components: tuple[str, ...]
    architectures: tuple[str, ...]
    packages: tuple[str, ...]
    exclude: tuple[str, ...]
    include_paths: tuple[str, ...]
    python: PythonSpec | None
    configure: Path | None
    remove: tuple[str, ...]
    image: dict[str, Any]

    @property
    def files(self) -> Path:
        """The tree that is copied over the image's root."""
        return self.directory / "files"

    def digest(self, architecture: str) -> str:
        """64 hex digits over everything that decides the image's content, except the package mirror's state of the day."""
        total = hashlib.sha256()

        def add(*parts: bytes) -> None:
            for part in parts:
                total.update(len(part).to_bytes(8, "big"))
                total.update(part)

        add(b"tclone-image", BUILDER_VERSION.encode(), architecture.encode())
        for path in _tree(self.directory):
            relative = os.fsencode(path.relative_to(self.directory))
            if path.is_symlink():
                add(b"link", relative, os.fsencode(os.readlink(path)))
            else:
                executable = b"x" if os.access(path, os.X_OK) else b"-"
                add(b"file", relative, executable, path.read_bytes())
        return total.hexdigest()


def _tree(directory: Path) -> list[Path]:
    found = []
    for base, folders, names in os.walk(directory):
        folders[:] = sorted(f for f in folders if f not in _IGNORED_NAMES)
        linked = [f for f in folders if (Path(base) / f).is_symlink()]
        found += [Path(base) / name for name in names + linked if name not in _IGNORED_NAMES and not name.endswith("~")]
    return sorted(found)


def load(images: Path, name: str) -> Recipe:
    """Read `images/<name>/recipe.toml`. Raises NotFound for no such recipe, BadRequest for one that is not right."""
    directory = images / valid_name(name)
    path = directory / "recipe.toml"
    try:
        data = tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        known = ", ".join(available(images)) or "none"
        raise NotFound(f"no recipe for image {name} in {images}; there are: {known}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"recipe {path} is not valid TOML: {error}") from None
    return _Reader(path, data).recipe(name, directory)


def available(images: Path) -> list[str]:
    """Names of all recipes, sorted."""
    return sorted(path.parent.name for path in images.glob("*/recipe.toml"))


class _Reader:
    """Turns parsed TOML into a Recipe; every complaint names the file and the key."""

    def __init__(self, path: Path, data: dict[str, Any]) -> None:
        self.path = path
        self.data = data

    def _fail(self, key: str, wanted: str) -> BadRequest:
        return BadRequest(f"recipe {self.path}: {key} must be {wanted}")

    def _table(self, key: str) -> dict[str, Any]:
        value = self.data.get(key, {})
        if not isinstance(value, dict):
            raise self._fail(key, "a table")
        return value

    def _strings(self, table: dict[str, Any], key: str, pattern: re.Pattern[str], default: list[str] | None = None) -> tuple[str, ...]:
        value = table.get(key, default or [])
        if not isinstance(value, list) or not all(isinstance(item, str) and pattern.fullmatch(item) for item in value):
            raise self._fail(key, f"a list of strings that match {pattern.pattern}")
        return tuple(value)

    def _file(self, table: dict[str, Any], key: str, directory: Path) -> Path | None:
        value = table.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or "/" in value or not (directory / value).is_file():
            raise self._fail(key, "the name of a file beside recipe.toml")
        return directory / value

    def recipe(self, name: str, directory: Path) -> Recipe:
        if self.data.get("name") != name:
            raise self._fail("name", f"{name!r}, as its folder is called")
        suite = self.data.get("suite")
        if not isinstance(suite, str) or not _SUITE.fullmatch(suite):
            raise self._fail("suite", "a release's code name")
        packages, build = self._table("packages"), self._table("build")
        absolute = re.compile(r"/[^\n]*")
        return Recipe(
            name=name,
            directory=directory,
            suite=suite,
            components=self._strings(self.data, "components", _SUITE, ["main"]),
            architectures=self._strings(self.data, "architectures", re.compile(r"[a-z0-9]+"), ["amd64"]),
            packages=self._strings(packages, "include", _PACKAGE),
            exclude=self._strings(packages, "exclude_paths", absolute),
            include_paths=self._strings(packages, "include_paths", absolute),
            python=self._python(directory),
            configure=self._file(build, "configure", directory),
            remove=self._strings(build, "remove", absolute),
            image=self._image(),
        )

    def _python(self, directory: Path) -> PythonSpec | None:
        table = self._table("python")
        if not table:
            return None
        prefix, version = table.get("prefix"), table.get("version")
        if not isinstance(prefix, str) or not re.fullmatch(r"(/[a-zA-Z0-9._-]+)+", prefix):
            raise self._fail("python.prefix", "an absolute path")
        if not isinstance(version, str) or not re.fullmatch(r"3\.\d+", version):
            raise self._fail("python.version", "such as \"3.13\"")
        lock = self._file(table, "lock", directory)
        if lock is None:
            raise self._fail("python.lock", "the name of a file beside recipe.toml")
        return PythonSpec(prefix=prefix, version=version, lock=lock)

    def _variables(self, table: dict[str, Any], key: str) -> dict[str, str]:
        """The table `env` in `table`; `key` is its whole name."""
        env = table.get("env", {})
        if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
            raise self._fail(key, "a table of strings")
        return env

    def _image(self) -> dict[str, Any]:
        table = self._table("image")
        entrypoint = table.get("entrypoint")
        if not isinstance(entrypoint, list) or not entrypoint or not all(isinstance(word, str) for word in entrypoint):
            raise self._fail("image.entrypoint", "a list of strings, with at least one")
        env = self._variables(table, "image.env")
        desktop = table.get("desktop")
        if desktop is not None:
            if not isinstance(desktop, dict) or not isinstance(desktop.get("port"), int):
                raise self._fail("image.desktop", "a table with a port")
            desktop = {"port": desktop["port"], "env": self._variables(desktop, "image.desktop.env")}
        ports = table.get("ports", [])
        if not isinstance(ports, list) or not all(isinstance(port, int) and 0 < port < 65536 for port in ports):
            raise self._fail("image.ports", "a list of port numbers")
        return {
            "entrypoint": entrypoint,
            "env": env,
            "workdir": str(table.get("workdir", "/")),
            "desktop": desktop,
            "ports": ports,
        }
