"""Writes requirements.lock, requirements-opentelemetry.lock and requirements-test.lock: the exact versions, in this environment, of what
pyproject.toml asks for and of all that those need. Run it with the virtual environment's Python after a deliberate upgrade. With the argument
`judges` it writes requirements-judges.lock; run that with the Python of their environment (`scripts/setup judges`). With `client NAME` it writes
requirements-client-NAME.lock of what is installed in .venv-clients/NAME (for a new client make that by hand first) of what the extra client-NAME needs;
what a client needs and is not installed there is left out, and told."""

from __future__ import annotations

import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPO = Path(__file__).resolve().parent.parent


def closure(wanted: list[str], of: str | None = None) -> dict[str, str]:
    """Canonical name to installed version of `wanted` and everything they require here, or in the environment of the client `of`.

    Raises PackageNotFoundError; what a client's environment lacks is told and left out.
    """
    path = None if of is None else [str(found) for found in (REPO / ".venv-clients" / of).glob("lib/python3*/site-packages")]
    pinned: dict[str, str] = {}
    waiting = [Requirement(text) for text in wanted]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in pinned:
            continue
        found = metadata.distribution(name) if path is None else next(iter(metadata.distributions(name=name, path=path)), None)
        if found is None:
            print(f"{of}: without {name}", file=sys.stderr)
            continue
        pinned[name] = found.version
        for text in found.requires or ():
            needed = Requirement(text)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(needed)
    return pinned


def write(path: Path, heading: str, pinned: dict[str, str]) -> None:
    lines = [f"# {heading} Written by scripts/lock.py.", *(f"{name}=={pinned[name]}" for name in sorted(pinned))]
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    if sys.argv[1:] == ["judges"]:
        judges = closure(project["project"]["optional-dependencies"]["judges"])
        write(REPO / "requirements-judges.lock", "Judges of the portal from outside, in an environment of their own.", judges)
        return
    if sys.argv[1:2] == ["client"]:
        for name in sys.argv[2:]:
            pinned = closure(project["project"]["optional-dependencies"][f"client-{name}"], name)
            write(REPO / f"requirements-client-{name}.lock", f"The client {name} as its users have it, in an environment of its own.", pinned)
        return
    runtime = closure([*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["fast"]])
    runtime |= closure(project["build-system"]["requires"])
    test = closure(project["project"]["optional-dependencies"]["test"])
    write(REPO / "requirements.lock", "What TClone runs and builds with.", runtime)
    traces = closure(project["project"]["optional-dependencies"]["opentelemetry"])
    for name, what, pinned in (("opentelemetry", "traces", traces), ("test", "the tests", test)):
        beside = {package: version for package, version in pinned.items() if package not in runtime}
        write(REPO / f"requirements-{name}.lock", f"What {what} need beside requirements.lock.", beside)


if __name__ == "__main__":
    main()
