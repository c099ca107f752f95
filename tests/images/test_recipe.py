"""Recipes and their digests."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from engine import image_recipe
from engine.config import REPO
from engine.errors import BadRequest, NotFound

GOOD = """
name = "small"
suite = "trixie"
[packages]
include = ["bash"]
[image]
entrypoint = ["/bin/sh"]
"""


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "small/files/etc").mkdir(parents=True)
    (tmp_path / "small/recipe.toml").write_text(GOOD)
    (tmp_path / "small/files/etc/motd").write_text("hello\n")
    return tmp_path


def digest(images: Path, architecture: str = "amd64") -> str:
    return image_recipe.load(images, "small").digest(architecture)


def test_digest_depends_on_content_alone(images: Path, tmp_path: Path) -> None:
    before = digest(images)
    copy = tmp_path / "copy"
    shutil.copytree(images / "small", copy / "small")
    os.utime(copy / "small/files/etc/motd", (1, 1))
    assert re.fullmatch("[0-9a-f]{64}", before) and digest(copy) == before


def test_one_content_under_two_names_has_two_digests(images: Path) -> None:
    """Builds are locked by name: so no two of them can make one digest."""
    shutil.copytree(images / "small", images / "other")
    with pytest.raises(BadRequest, match="'other', as its folder is called"):
        image_recipe.load(images, "other")
    recipe = images / "other/recipe.toml"
    recipe.write_text(recipe.read_text().replace('name = "small"', 'name = "other"'))
    assert image_recipe.load(images, "other").digest("amd64") != digest(images)


@pytest.mark.parametrize("change", ["content", "mode", "new", "link", "recipe", "renamed"])
def test_every_change_of_the_recipe_changes_the_digest(images: Path, change: str) -> None:
    before = digest(images)
    file = images / "small/files/etc/motd"
    match change:
        case "content":
            file.write_text("hello!\n")
        case "mode":
            file.chmod(0o755)
        case "new":
            (file.parent / "other").touch()
        case "link":
            (file.parent / "link").symlink_to("motd")
        case "recipe":
            (images / "small/recipe.toml").write_text(GOOD.replace('"bash"', '"bash", "git"'))
        case "renamed":
            file.rename(file.parent / "issue")
    assert digest(images) != before


def test_digest_depends_on_architecture_and_builder(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(images)
    assert digest(images, "arm64") != before
    monkeypatch.setattr(image_recipe, "BUILDER_VERSION", "another")
    assert digest(images) != before


def test_documentation_does_not_change_the_digest(images: Path) -> None:
    before = digest(images)
    (images / "small/README.md").write_text("words")
    (images / "small/files/etc/motd~").write_text("an editor's backup")
    assert digest(images) == before


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (GOOD.replace('name = "small"', 'name = "other"'), "name"),
        (GOOD.replace('"trixie"', '"../trixie"'), "suite"),
        (GOOD.replace('"bash"', '"bash,--hook=x"'), "packages.include|include"),
        (GOOD.replace('["/bin/sh"]', "[]"), "entrypoint"),
        (GOOD + '\n[build]\nconfigure = "../../etc/passwd"\n', "configure"),
        (GOOD + '\n[python]\nprefix = "opt"\nversion = "3.13"\nlock = "x"\n', "python.prefix"),
        ("name = ", "TOML"),
    ],
    ids=["name", "suite", "package", "entrypoint", "configure", "python", "syntax"],
)
def test_mistakes_are_named(images: Path, text: str, complaint: str) -> None:
    (images / "small/recipe.toml").write_text(text)
    with pytest.raises(BadRequest, match=complaint):
        image_recipe.load(images, "small")


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "A", "x" * 64, "a\n"])
def test_names_that_could_be_paths_are_refused(images: Path, name: str) -> None:
    with pytest.raises(BadRequest):
        image_recipe.load(images, name)


def test_missing_recipe_says_which_there_are(images: Path) -> None:
    with pytest.raises(NotFound, match="there are: small"):
        image_recipe.load(images, "large")


def test_recipes_of_this_repository_are_good() -> None:
    names = image_recipe.available(REPO / "images")
    assert {"webtop-xfce", "workspace"} <= set(names)
    for name in names:
        recipe = image_recipe.load(REPO / "images", name)
        # Mirrors are the host's to choose.
        for path in recipe.directory.rglob("*"):
            if path.is_file():
                assert not re.search(rb"https?://(?!www\.w3\.org/)", path.read_bytes()), path


def test_lock_file_pins_and_hashes_everything_and_leaves_uvloop_out() -> None:
    text = (REPO / "images/webtop-xfce/requirements.lock").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    assert len(lines) > 20
    assert all(re.fullmatch(r"[a-z0-9.-]+==\S+ +--hash=sha256:[0-9a-f]{64}", line) for line in lines)
    assert not any(line.startswith("uvloop") for line in lines)
    assert any(line.startswith("selkies==2.1.0 ") for line in lines)
