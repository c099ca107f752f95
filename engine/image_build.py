"""The image builder: from a recipe to a root file system in the pool and an archive of it in the cache.

An image is content-addressed by its recipe (Recipe.digest), so it is built once and again only when the recipe changes. The
archive in the cache refills a lost pool without a build. Work happens in a directory whose name starts with a dot,
which a rename at the end turns into the image; whatever dies before leaves only that directory, and the next build or
engine start removes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from engine import image_apt, image_recipe
from engine.config import Config
from engine.errors import BadRequest, Internal, Unavailable
from engine.image_process import run_confined, run_in_root
from engine.image_recipe import PythonSpec, Recipe
from engine.images import Image, ImageStore, Progress, ProgressClock

# Wheels are accepted for any C library up to the image's own (trixie has glibc 2.41); pip takes the list in this order.
_GLIBC_TAGS = ("2_39", "2_35", "2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
# Archives at level 6: 4 % smaller than 3 for a third more time on two cores; unpacking costs the same.
_ZSTD = "zstd -q -T0 -6"


async def build(name: str, config: Config, progress: Progress) -> Image:
    """Build image `name`, or find it built already.

    `progress(phase, detail, elapsed_ms)` is called on the event loop's thread; phases in order: `wait` (another build of the same
    image is under way), `fetch`, `unpack`, `wheels`, `configure`, `pack`, `import`. Raises NotFound (no such recipe), BadRequest
    (bad recipe), Unavailable (no mirror, missing program), NoSpace, Internal.
    """
    recipe = image_recipe.load(config.images, name)
    architecture = await _architecture()
    if architecture not in recipe.architectures:
        raise BadRequest(f"image {name} is for {', '.join(recipe.architectures)}; this host is {architecture}")
    digest = recipe.digest(architecture)
    store = ImageStore(config)
    clock = ProgressClock(progress)
    async with store.lock(name, clock):
        await asyncio.to_thread(store.clean, name)
        if store.has(digest) and store.artefact(digest).exists():
            return store.get(digest)
        if store.has(digest):
            image = store.get(digest)
            clock("pack", "the archive is missing from the cache")
            await _pack(store.rootfs(digest), store, image)
            return image
        if store.artefact(digest).exists():
            try:
                return await store.restore(digest, clock)
            except Internal as error:
                clock("import", f"the cached archive is unusable, building again: {error.message.splitlines()[0]}")
                await asyncio.to_thread(store.forget_artefact, digest)
        return await _Build(recipe, digest, architecture, config, store, clock).run()


async def _architecture() -> str:
    process = await asyncio.create_subprocess_exec("dpkg", "--print-architecture", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().strip()


async def _pack(root: Path, store: ImageStore, image: Image) -> None:
    """Write the archive of `root` into the cache, complete or not at all."""
    partial = store.partial_artefact(image.name)
    await run_confined(
        ["tar", "--create", "--numeric-owner", "--sparse", "--xattrs", "--xattrs-include=*", f"--use-compress-program={_ZSTD}",
         "--one-file-system", "--warning=no-file-ignored", "--file", str(partial), "--directory", str(root), "."],
        f"packing image {image.name}",
        network=False,
    )  # fmt: skip
    await asyncio.to_thread(store.keep_artefact, image, partial)


class _Build:
    """One build under the image's lock."""

    def __init__(
        self, recipe: Recipe, digest: str, architecture: str, config: Config, store: ImageStore, clock: ProgressClock
    ) -> None:
        self.recipe = recipe
        self.digest = digest
        self.architecture = architecture
        self.config = config
        self.store = store
        self.clock = clock

    async def run(self) -> Image:
        sources = await image_apt.discover()
        stage = await asyncio.to_thread(self.store.new_stage, self.recipe.name)
        root = stage / "rootfs"
        wheels = asyncio.ensure_future(self._wheels())
        try:
            await self._packages(root, sources)
            self.clock("wheels", "")
            await self._install_wheels(root, await wheels)
            self.clock("configure", "")
            await self._configure(root, sources)
            image = await asyncio.to_thread(self.store.describe, stage, self.recipe.name, self.digest, self.recipe.image)
            self.clock("pack", f"{image.size >> 20} MiB")
            await _pack(root, self.store, image)
            self.clock("import", "")
            return await asyncio.to_thread(self.store.publish, stage, self.digest)
        finally:
            wheels.cancel()
            await asyncio.gather(wheels, return_exceptions=True)
            await asyncio.to_thread(self.store.discard, stage)

    # Packages

    async def _packages(self, root: Path, sources: image_apt.AptSources) -> None:
        work = root.parent
        # Both files may carry passwords of a proxy or a private mirror: files, not arguments, and gone with the stage.
        options, lists = work / "apt.conf", work / "sources.list"
        _write_private(options, "\n".join(sources.options) + "\n")
        _write_private(lists, "\n".join(sources.lines(self.recipe.suite, self.recipe.components)) + "\n")
        argv = [
            "mmdebstrap", "--verbose", "--mode=root", "--variant=minbase", "--format=directory", f"--architectures={self.architecture}",
            "--aptopt=APT::Install-Recommends \"false\"", "--aptopt=Acquire::Languages \"none\"", "--aptopt=APT::Keep-Downloaded-Packages \"true\"",
            # The files are synced once, when the image is published.
            "--dpkgopt=force-unsafe-io",
            "--skip=essential/unlink,check/empty", f"--setup-hook={_MOUNT_DEBS}", f"--customize-hook={_UMOUNT_DEBS}",
            *([f"--include={','.join(self.recipe.packages)}"] if self.recipe.packages else []),
            *(f"--dpkgopt=path-exclude={path}" for path in self.recipe.exclude),
            *(f"--dpkgopt=path-include={path}" for path in self.recipe.include_paths),
        ]  # fmt: skip
        if sources.options:
            argv.append(f"--aptopt={options}")
        async with self.store.lock_packages(self.clock) as debs:
            self.clock("fetch", "package lists")
            await run_confined(
                [*argv, self.recipe.suite, str(root), str(lists)],
                f"installing packages of image {self.recipe.name} ({self.recipe.suite} from {image_apt.without_password(sources.archive)})",
                _PackageProgress(self.clock),
                env={"TCLONE_DEBS": str(debs), "TMPDIR": str(work)},
            )

    # Python wheels

    async def _wheels(self) -> Path | None:
        """The folder with every wheel of the lock file, fetched by the host's pip unless it is in the cache."""
        spec = self.recipe.python
        if spec is None:
            return None
        key = hashlib.sha256(spec.lock.read_bytes() + spec.version.encode() + self.architecture.encode()).hexdigest()
        ready = self.config.cache / "wheels" / key
        if ready.is_dir():
            return ready
        partial = ready.with_name(f".{self.recipe.name}.{key[:16]}")
        partial.mkdir(parents=True)
        try:
            await run_confined(
                [*_pip(), "download", "--quiet", "--no-deps", "--require-hashes", f"--dest={partial}", *_pip_target(spec, self.architecture)],
                f"fetching Python wheels of image {self.recipe.name}",
            )
            partial.rename(ready)
        finally:
            await asyncio.to_thread(shutil.rmtree, partial, True)
        return ready

    async def _install_wheels(self, root: Path, wheels: Path | None) -> None:
        spec = self.recipe.python
        if spec is None or wheels is None:
            return
        inside = f"{spec.prefix}/lib/python{spec.version}/site-packages"
        what = f"installing Python wheels of image {self.recipe.name}"
        await run_in_root(root, ["python3", "-m", "venv", "--without-pip", "--symlinks", spec.prefix], what)
        # pip inside the image would need network, certificates and ensurepip; the host's pip installs wheels for another Python as well.
        await run_confined(
            [*_pip(), "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--ignore-requires-python", f"--find-links={wheels}", f"--target={root}{inside}",
             *_pip_target(spec, self.architecture)],
            what,
            network=False,
            env={"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore", "TMPDIR": str(root.parent)},
        )  # fmt: skip
        # Scripts made for --target start with the host's interpreter.
        await asyncio.to_thread(shutil.rmtree, Path(f"{root}{inside}/bin"), True)
        libraries = [str(path) for path in Path(f"{root}{inside}").rglob("*.so*") if path.stat().st_size > 1 << 18]
        for path in libraries:
            # Wheel repair tools pad libraries with zeros (pcmflux: 99 MB, of which 91 MB are holes once dug).
            await run_confined(["fallocate", "--dig-holes", path], what, network=False)
        await run_in_root(root, ["python3", "-m", "compileall", "-q", "-j", "0", inside], what)

    # Files and settings

    async def _configure(self, root: Path, sources: image_apt.AptSources) -> None:
        await asyncio.to_thread(_copy_files, self.recipe.files, root)
        if self.recipe.configure is not None:
            inside = root / ".configure"
            await asyncio.to_thread(shutil.copyfile, self.recipe.configure, inside)
            await run_in_root(root, ["bash", "-eu", "/.configure"], f"configuring image {self.recipe.name}")
            inside.unlink()
        lines = sources.lines(self.recipe.suite, self.recipe.components, public=True)
        await asyncio.to_thread(_tidy, root, self.recipe.remove, lines)


# The cache of packages is mounted where apt keeps what it fetches; the mount lives in mmdebstrap's own mount namespace.
_MOUNT_DEBS = 'mkdir -p "$1/var/cache/apt/archives" && mount --bind "$TCLONE_DEBS" "$1/var/cache/apt/archives"'
# Before mmdebstrap's own cleaning, which would empty the cache.
_UMOUNT_DEBS = 'umount "$1/var/cache/apt/archives"'


class _PackageProgress:
    """Reads apt's and dpkg's output for the phase, a count and the total; tells only every twentieth package, a viewer reads no faster."""

    _LINE = re.compile(r"(Get:\d+|Unpacking|Setting up) (\S+)")
    _TOTAL = re.compile(r"(\d+) upgraded, (\d+) newly installed")
    _PHASES = {"Unpacking": "unpack", "Setting up": "configure"}

    def __init__(self, clock: ProgressClock) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        # apt is asked twice, for the essential packages and for the others, and says each time how many there will be.
        self._total = 0

    def __call__(self, line: str) -> None:
        total = self._TOTAL.match(line)
        if total is not None:
            self._total += int(total[2])
        match = self._LINE.match(line)
        if match is None:
            return
        phase = self._PHASES.get(match[1], "fetch")
        count = self._counts[phase] = self._counts.get(phase, 0) + 1
        if count % 20 == 1:
            self._clock(phase, f"{count} of {self._total} packages" if count <= self._total else f"{count} packages")


def _pip() -> Sequence[str]:
    for candidate in (sys.executable, shutil.which("python3")):
        if candidate and _has_pip(candidate):
            return [candidate, "-m", "pip", "--disable-pip-version-check"]
    raise Unavailable("no pip on this host: install python3-pip; it fetches the image's Python wheels")


def _has_pip(python: str) -> bool:
    folder = Path(python).parent
    return any((folder / name).exists() for name in ("pip", "pip3"))


def _pip_target(spec: PythonSpec, architecture: str) -> list[str]:
    machine = _MACHINES[architecture]
    tags = [f"manylinux_{tag}_{machine}" for tag in _GLIBC_TAGS] + [f"manylinux2014_{machine}", "any"]
    abi = "cp" + spec.version.replace(".", "")
    return [
        "--only-binary=:all:", f"--python-version={spec.version}", "--implementation=cp",
        f"--abi={abi}", "--abi=abi3", "--abi=none", *(f"--platform={tag}" for tag in tags), f"--requirement={spec.lock}",
    ]  # fmt: skip


def _write_private(path: Path, text: str) -> None:
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text)


def _copy_files(source: Path, root: Path) -> None:
    """Copy the recipe's tree. A checkout keeps only one permission bit, so: folders and programs 0755, other files 0644, all root's."""
    for base, folders, names in os.walk(source):
        target = root / Path(base).relative_to(source)
        if not target.is_dir():
            target.mkdir()
            target.chmod(0o755)
        for name in names + [folder for folder in folders if (Path(base) / folder).is_symlink()]:
            origin, copy = Path(base) / name, target / name
            copy.unlink(missing_ok=True)
            if origin.is_symlink():
                copy.symlink_to(os.readlink(origin))
                continue
            shutil.copyfile(origin, copy)
            copy.chmod(0o755 if origin.stat().st_mode & stat.S_IXUSR else 0o644)


# What a build leaves that no workspace should have.
_LEFTOVERS = (
    "/etc/apt/apt.conf.d/99mmdebstrap", "/etc/apt/sources.list.d/*", "/var/log/*", "/var/cache/*", "/tmp/*", "/run/*",
    "/etc/.pwd.lock", "/etc/machine-id", "/var/lib/dbus/machine-id", "/etc/hostname", "/etc/resolv.conf", "/etc/*-", "/root/.bash_history",
)  # fmt: skip


def _tidy(root: Path, remove: Sequence[str], sources: list[str]) -> None:
    for pattern in (*_LEFTOVERS, *remove):
        for path in root.glob(pattern.lstrip("/")):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    (root / "etc/apt/sources.list").write_text("\n".join(sources) + "\n")
    # Empty, so that the first start of a workspace makes its own.
    (root / "etc/machine-id").touch()
    # The addresses every workspace has (docs/explanation/architecture.md).
    (root / "etc/resolv.conf").write_text("nameserver 10.77.0.1\n")
    (root / "etc/hostname").write_text("workspace\n")
    (root / "etc/hosts").write_text("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n10.77.0.2\tworkspace\n")
