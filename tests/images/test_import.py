"""Importing archives and layouts that somebody hostile made."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from engine.errors import BadRequest, NotFound
from engine.image_import import import_image
from engine.image_unpack import Limits
from engine.images import ImageStore
from tests.images.conftest import entry, folder, hardlink, leftovers, symlink, tar_bytes

SHELL = entry("bin/sh", b"#!\n", mode=0o755)


async def test_root_file_system_tar_becomes_an_image(config, progress, archive) -> None:
    path = archive(folder("bin"), entry("bin/su", b"x", mode=0o4755, uid=0), entry("home/a", b"hello", uid=1000, gid=1001), symlink("lib", "usr/lib"))
    image = await import_image(path, "mine", config, progress)
    root = ImageStore(config).rootfs(image.digest)
    assert (root / "home/a").read_text() == "hello"
    assert ((root / "home/a").stat().st_uid, (root / "home/a").stat().st_gid) == (1000, 1001)
    assert stat.S_IMODE((root / "bin/su").stat().st_mode) == 0o4755
    assert os.readlink(root / "lib") == "usr/lib"
    assert ImageStore(config).get("mine") == image
    assert progress.phases == ["read", "unpack", "import"]
    assert leftovers(config) == []


async def test_same_archive_again_is_found(config, progress, archive) -> None:
    path = archive(SHELL)
    first = await import_image(path, "mine", config, progress)
    assert await import_image(path, "mine", config, progress) == first
    assert (await import_image(path, "other", config, progress)).digest != first.digest


@pytest.mark.parametrize("compress", ["gzip", "zstd", "xz", "bzip2"])
async def test_compressed_archives(config, progress, tmp_path: Path, compress: str) -> None:
    path = tmp_path / "root.tar.x"
    path.write_bytes(subprocess.run([compress, "-c"], input=tar_bytes(SHELL), capture_output=True, check=True).stdout)
    image = await import_image(path, "mine", config, progress)
    assert (ImageStore(config).rootfs(image.digest) / "bin/sh").is_file()


@pytest.mark.parametrize(
    "entries",
    [
        [entry("../escaped", b"x")],
        [entry("a/../../escaped", b"x")],
        [SHELL, hardlink("stolen", "../../../../../etc/passwd")],
        [SHELL, entry("x" * 300, b"x")],
        [SHELL, entry("etc/.wh...", b"")],
        [SHELL, entry(".wh.", b"")],
    ],
    ids=["dotdot", "inner-dotdot", "hardlink-dotdot", "long-name", "whiteout-dotdot", "whiteout-nothing"],
)
async def test_hostile_entries_are_refused_and_nothing_is_kept(config, progress, archive, tmp_path: Path, entries) -> None:
    path = archive(*entries)
    with pytest.raises(BadRequest):
        await import_image(path, "evil", config, progress)
    assert not list(tmp_path.rglob("escaped"))
    assert leftovers(config) == []
    assert ImageStore(config).list() == []


async def test_writing_through_links_stays_inside(config, progress, archive, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim").write_text("untouched")
    path = archive(
        SHELL,
        folder(str(outside).lstrip("/")),
        symlink("absolute", str(outside)),
        symlink("relative", "../" * 20 + str(outside).lstrip("/")),
        entry("absolute/planted", b"1"),
        entry("relative/victim", b"overwritten"),
    )
    image = await import_image(path, "evil", config, progress)
    assert sorted(os.listdir(outside)) == ["victim"]
    assert (outside / "victim").read_text() == "untouched"
    # Both went to the same-named folder of the image.
    inside = ImageStore(config).rootfs(image.digest) / str(outside).lstrip("/")
    assert sorted(os.listdir(inside)) == ["planted", "victim"]


async def test_file_over_a_link_replaces_the_link(config, progress, archive, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path = archive(SHELL, symlink("etc/passwd", str(victim)), entry("etc/passwd", b"new"))
    image = await import_image(path, "evil", config, progress)
    assert victim.read_text() == "untouched"
    made = ImageStore(config).rootfs(image.digest) / "etc/passwd"
    assert not made.is_symlink() and made.read_text() == "new"


async def test_hard_link_to_a_host_file_finds_nothing(config, progress, archive) -> None:
    with pytest.raises(BadRequest, match="etc/hostname"):
        await import_image(archive(SHELL, hardlink("stolen", "/etc/hostname")), "evil", config, progress)


async def test_devices_are_left_out_and_pipes_kept(config, progress, archive) -> None:
    disk = entry("dev/disk", type=tarfile.BLKTYPE, devmajor=8, devminor=0)
    kernel = entry("dev/mem", type=tarfile.CHRTYPE, devmajor=1, devminor=1)
    image = await import_image(archive(SHELL, disk, kernel, entry("run/pipe", type=tarfile.FIFOTYPE)), "mine", config, progress)
    root = ImageStore(config).rootfs(image.digest)
    assert not (root / "dev/disk").exists() and not (root / "dev/mem").exists()
    assert (root / "run/pipe").is_fifo()


async def test_overlay_attributes_are_not_taken_over(config, progress, archive) -> None:
    headers = {"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.note": "kept"}
    image = await import_image(archive(SHELL, entry("etc/f", b"", pax_headers=headers)), "mine", config, progress)
    assert os.listxattr(ImageStore(config).rootfs(image.digest) / "etc/f") == ["user.note"]


@pytest.mark.parametrize("limits", [Limits(entries=3), Limits(bytes=10)], ids=["entries", "bytes"])
async def test_limits_hold(config, progress, archive, limits: Limits) -> None:
    path = archive(SHELL, *(entry(f"file{i}", b"12345678") for i in range(5)))
    with pytest.raises(BadRequest, match="more than"):
        await import_image(path, "big", config, progress, limits)
    assert leftovers(config) == []


async def test_header_that_claims_gigabytes_does_not_take_the_memory(config, progress, tmp_path: Path) -> None:
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
    path = tmp_path / "long.tar.zst"
    # 4 GiB of zeros behind it, which compress to nothing: more than the unpacker may hold.
    command = ["bash", "-c", "{ cat; head -c 4G /dev/zero; } | zstd -q -1 -c"]
    path.write_bytes(subprocess.run(command, input=name.tobuf(tarfile.GNU_FORMAT), capture_output=True, check=True).stdout)
    with pytest.raises(BadRequest, match="header is too long"):
        await import_image(path, "long", config, progress)


async def test_damaged_archives_are_named(config, progress, tmp_path: Path) -> None:
    packed = gzip.compress(tar_bytes(SHELL, entry("data", os.urandom(200_000))))
    for name, content in {"cut.tar.gz": packed[:-1000], "noise.tar": os.urandom(4096), "empty.tar": b""}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadRequest):
            await import_image(path, "broken", config, progress)
    assert leftovers(config) == []


async def test_what_is_no_archive_is_refused(config, progress, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        await import_image(tmp_path / "missing", "x", config, progress)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRequest, match="regular file"):
        await import_image(tmp_path / "pipe", "x", config, progress)
    with pytest.raises(BadRequest, match="image name"):
        await import_image(tmp_path / "pipe", "../x", config, progress)
    with pytest.raises(BadRequest, match="index.json"):
        await import_image(tmp_path, "x", config, progress)


# OCI image layouts


class LayoutMaker:
    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "blobs/sha256").mkdir(parents=True)

    def blob(self, content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        (self.path / "blobs/sha256" / digest).write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def write(self, layers: list[bytes], config: dict[str, object] | None = None, platform: dict[str, str] | None = None) -> None:
        settings = self.blob(json.dumps({"config": config or {}}).encode())
        manifest = {"config": settings, "layers": [self.blob(layer) for layer in layers]}
        descriptor = self.blob(json.dumps(manifest).encode())
        if platform is not None:
            descriptor["platform"] = platform
        (self.path / "index.json").write_text(json.dumps({"manifests": [descriptor]}))


@pytest.fixture
def layout(tmp_path: Path) -> LayoutMaker:
    return LayoutMaker(tmp_path / "layout")


async def test_layout_with_whiteouts(config, progress, layout: LayoutMaker) -> None:
    lower = tar_bytes(SHELL, entry("etc/gone", b"1"), entry("etc/kept", b"1"), entry("opt/old/a", b"1"), entry("opt/stays", b"1"))
    upper = tar_bytes(
        entry("etc/.wh.gone"),
        # What the same layer makes stays, before and after the mark.
        entry("opt/new", b"2"), entry("opt/.wh..wh..opq"), entry("opt/newer", b"2"),
        entry("etc/.wh.kept"), entry("etc/kept", b"2"),
    )  # fmt: skip
    layout.write(
        [lower, gzip.compress(upper)],
        {"Entrypoint": ["/bin/sh"], "Cmd": ["-c", "true"], "Env": ["A=b=c"], "WorkingDir": "/opt", "ExposedPorts": {"3000/tcp": {}, "53/udp": {}}},
    )
    image = await import_image(layout.path, "oci", config, progress)
    root = ImageStore(config).rootfs(image.digest)
    assert sorted(os.listdir(root / "opt")) == ["new", "newer"]
    assert os.listdir(root / "etc") == ["kept"] and (root / "etc/kept").read_text() == "2"
    assert (image.entrypoint, image.env, image.workdir, image.ports) == (["/bin/sh", "-c", "true"], {"A": "b=c"}, "/opt", [3000])


async def test_whiteout_cannot_remove_through_a_link(config, progress, layout: LayoutMaker, tmp_path: Path) -> None:
    victim = tmp_path / "victims"
    victim.mkdir()
    (victim / "file").touch()
    layout.write([tar_bytes(SHELL, symlink("out", str(victim))), tar_bytes(entry("out/.wh.file"), entry("out/.wh..wh..opq"))])
    await import_image(layout.path, "evil", config, progress)
    assert (victim / "file").exists()


async def test_blob_with_another_content_is_refused(config, progress, layout: LayoutMaker) -> None:
    layout.write([tar_bytes(SHELL)])
    for blob in (layout.path / "blobs/sha256").iterdir():
        original = blob.read_bytes()
        blob.write_bytes(original[:-1] + bytes([original[-1] ^ 1]))
        with pytest.raises(BadRequest):
            await import_image(layout.path, "evil", config, progress)
        blob.write_bytes(original)
    await import_image(layout.path, "good", config, progress)


async def test_blob_that_is_a_link_or_leaves_the_folder_is_refused(config, progress, layout: LayoutMaker, tmp_path: Path) -> None:
    layout.write([tar_bytes(SHELL)])
    blob = max((layout.path / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.rename(tmp_path / "elsewhere")
    blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadRequest, match="cannot read"):
        await import_image(layout.path, "evil", config, progress)
    (layout.path / "index.json").write_text(json.dumps({"manifests": [{"digest": "sha256:../../../../etc/passwd"}]}))
    with pytest.raises(BadRequest, match="digest"):
        await import_image(layout.path, "evil", config, progress)


async def test_image_of_another_machine_is_refused(config, progress, layout: LayoutMaker) -> None:
    layout.write([tar_bytes(SHELL)], platform={"os": "linux", "architecture": "s390x"})
    with pytest.raises(BadRequest, match="no image for linux/"):
        await import_image(layout.path, "other", config, progress)


async def test_output_of_docker_save_is_explained(config, progress, archive) -> None:
    path = archive(entry("manifest.json", b"[]"), entry("layer.tar", tar_bytes(SHELL)))
    with pytest.raises(BadRequest, match="docker save"):
        await import_image(path, "saved", config, progress)


def test_fixture_writes_real_tars() -> None:
    with tarfile.open(fileobj=io.BytesIO(tar_bytes(SHELL))) as archive:
        assert archive.getnames() == ["bin/sh"]
