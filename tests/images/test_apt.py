"""The host's mirror is found by asking its apt."""

from __future__ import annotations

import pytest

from engine import image_apt
from engine.errors import Unavailable


def stanza(**fields: str) -> dict[str, str]:
    base = {"Component": "main", "Origin": "Debian", "Label": "Debian", "Release": "bookworm", "Repo-URI": "http://mirror.test/debian/"}
    return {**base, **{key.replace("_", "-"): value for key, value in fields.items()}}


SECURITY = stanza(Label="Debian-Security", Release="bookworm-security", Repo_URI="http://mirror.test/security/")


def test_output_of_apt_is_parsed() -> None:
    text = "MetaKey: main/x\nComponent: main\nRepo-URI: http://mirror.test/debian/\nFallback-Of: \n\nComponent: contrib\n"
    assert image_apt.parse_targets(text) == [
        {"MetaKey": "main/x", "Component": "main", "Repo-URI": "http://mirror.test/debian/", "Fallback-Of": ""},
        {"Component": "contrib"},
    ]


def test_archive_and_security_are_told_apart_in_any_order() -> None:
    sources = image_apt.choose([SECURITY, stanza()])
    assert sources.lines("trixie", ("main",)) == [
        "deb http://mirror.test/debian trixie main",
        "deb http://mirror.test/debian trixie-updates main",
        "deb http://mirror.test/security trixie-security main",
    ]


def test_other_repositories_are_no_archive() -> None:
    foreign = stanza(Origin="Vendor", Label="Vendor", Repo_URI="http://vendor.test/")
    backports = stanza(Label="Debian Backports", Release="bookworm-backports", Repo_URI="http://backports.test/")
    contrib = stanza(Component="contrib", Repo_URI="http://contrib.test/")
    assert image_apt.choose([foreign, backports, contrib, stanza()]).archive == "http://mirror.test/debian"
    with pytest.raises(Unavailable, match="apt-get update"):
        image_apt.choose([foreign, backports, contrib])


def test_lists_that_were_never_fetched_have_no_labels() -> None:
    bare = {"Component": "main", "Release": "bookworm", "Repo-URI": "http://mirror.test/debian/"}
    secure = {"Component": "main", "Release": "bookworm-security", "Repo-URI": "http://mirror.test/security/"}
    sources = image_apt.choose([secure, bare])
    assert (sources.archive, sources.security) == ("http://mirror.test/debian", "http://mirror.test/security")


def test_host_without_security_repository_builds_without() -> None:
    assert len(image_apt.choose([stanza()]).lines("trixie", ("main", "contrib"))) == 2


def test_passwords_and_host_paths_do_not_enter_an_image() -> None:
    sources = image_apt.choose([stanza(Repo_URI="https://me:secret@mirror.test:8081/debian/", Signed_By="/etc/keys/own.gpg")])
    assert "[signed-by=/etc/keys/own.gpg] https://me:secret@mirror.test:8081/debian trixie" in sources.lines("trixie", ("main",))[0]
    assert sources.lines("trixie", ("main",), public=True)[0] == "deb https://mirror.test:8081/debian trixie main"


def test_only_options_about_fetching_are_kept(tmp_path) -> None:
    (tmp_path / "auth.conf.d").mkdir()
    dump = "\n".join([
        'Dir "/";', f'Dir::Etc "{str(tmp_path)[1:]}";', 'Dir::State "var/lib/apt";', 'Acquire::http::Proxy "http://proxy.test:3128";',
        'Acquire::https "";', 'Acquire::https::CaInfo "/etc/ssl/own.pem";', 'Acquire::http::Proxy::mirror.test "DIRECT";',
        'Acquire::Retries "3";', 'Acquire::Languages:: "none";', 'APT::Update::Post-Invoke:: "rm -rf /";',
    ])  # fmt: skip
    assert image_apt.fetch_options(dump) == (
        'Acquire::http::Proxy "http://proxy.test:3128";',
        'Acquire::https::CaInfo "/etc/ssl/own.pem";',
        'Acquire::http::Proxy::mirror.test "DIRECT";',
        'Acquire::Retries "3";',
        f'Dir::Etc::netrcparts "{tmp_path}/auth.conf.d";',
    )


async def test_this_host_has_a_mirror() -> None:
    sources = await image_apt.discover()
    assert sources.archive.partition(":")[0] in ("http", "https", "file", "mirror+file", "copy", "ftp", "cdrom")
