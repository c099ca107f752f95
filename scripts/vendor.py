"""Put what the portal's pages take from npm into static/vendor: `python scripts/vendor.py TARGET`.

npm fetches exactly what scripts/web/package-lock.json names, each package checked against the hash there, and runs none of its scripts.
The files are then made fit for the portal's content security policy, which allows no inline styles.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WEB = Path(__file__).resolve().parent / "web"

# Target, source below node_modules, and what to replace: text, its substitute, how often it must be there.
# Terminal colours go through the style object instead of the attribute, and style sheets into an element of ours
# (static/js/stylesheet.js), which adopts them: both are the page's own doing, which the policy lets through.
_FILES: list[tuple[str, str, list[tuple[str, str, int]]]] = [
    (
        "xterm.js", "@xterm/xterm/lib/xterm.mjs",
        [
            ('createElement("style")', 'createElement("tclone-style")', 3),
            ('t.setAttribute("style",`${t.getAttribute("style")||""}${e};`)', "t.style.cssText+=`;${e};`", 1),
            ("//# sourceMappingURL=xterm.mjs.map\n", "", 1),
        ],
    ),
    ("xterm.css", "@xterm/xterm/css/xterm.css", []),
    ("xterm.LICENSE", "@xterm/xterm/LICENSE", []),
    ("addon-fit.js", "@xterm/addon-fit/lib/addon-fit.mjs", [("//# sourceMappingURL=addon-fit.mjs.map\n", "", 1)]),
]  # fmt: skip


def fetch(directory: Path) -> Path:
    """node_modules with the locked packages. Raises CalledProcessError, FileNotFoundError without npm."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(WEB / name, directory / name)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    subprocess.run(["npm", "ci", *options], cwd=directory, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)
    return directory / "node_modules"


def fitted(source: Path, changes: list[tuple[str, str, int]]) -> bytes:
    """The file with its changes. Raises SystemExit when it is not the one that they were made for."""
    text = source.read_text(encoding="utf-8")
    for old, new, count in changes:
        if text.count(old) != count:
            sys.exit(f"{source.name} has {old!r} {text.count(old)} times, not {count}: scripts/vendor.py was made for another version")
        text = text.replace(old, new)
    return text.encode()


def main() -> None:
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="tclone-web-") as directory:
        modules = fetch(Path(directory))
        made = {name: fitted(modules / source, changes) for name, source, changes in _FILES}
    target.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        (target / name).write_bytes(content)
        (target / name).chmod(0o644)


if __name__ == "__main__":
    main()
