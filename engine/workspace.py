"""What a workspace is: its record, its states, and which names and limits it may have."""

from __future__ import annotations

import dataclasses
import enum
import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from engine.config import DEFAULT_MEMORY
from engine.errors import BadRequest, Conflict, Internal
from engine.network.ports import FACE

MAX_LABEL = 80
MAX_COPIES = 8
MIN_MEMORY = 16 << 20
# The start of a desktop writes some 10 MiB.
MIN_DISK = 64 << 20
MIN_CPUS, MAX_CPUS = 0.1, 1024
# What a client of OSWorld reaches on the host's loopback, without a login: its server, and Chromium's debugging port.
CHROMIUM = 9222
OSWORLD_PORTS = frozenset({FACE, CHROMIUM})
MAX_PIDS = 4_000_000
MIN_SHM = 1 << 20
DEFAULT_PIDS = 4096
_MAX_PORTS = 64
_MAX_ENV_BYTES = 128 << 10

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,40}")
_ID = re.compile(r"ws-[0-9]+")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class State(str, enum.Enum):
    CREATED = "created"
    STARTING = "starting"
    READY = "ready"
    FORKING = "forking"
    STOPPED = "stopped"
    FAILED = "failed"
    REMOVING = "removing"
    GONE = "gone"


_NEXT: dict[State, set[State]] = {
    State.CREATED: {State.STARTING, State.FAILED, State.REMOVING, State.READY},
    State.STARTING: {State.READY, State.FAILED, State.STOPPED, State.REMOVING},
    State.READY: {State.FORKING, State.STOPPED, State.REMOVING, State.FAILED},
    State.FORKING: {State.READY, State.STOPPED, State.REMOVING},
    State.STOPPED: {State.REMOVING},
    State.FAILED: {State.REMOVING, State.STOPPED},
    State.REMOVING: {State.GONE, State.FAILED},
    State.GONE: set(),
}


def now() -> str:
    """The time as RFC 3339 in UTC with milliseconds."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Workspace:
    """One workspace. The fields up to `paused` are public (docs/reference/engine-api.md); the rest stays in the engine."""

    id: str
    name: str
    kind: str  # "source" | "branch"
    image: str
    state: State = State.CREATED
    phase: str = ""
    parent: str | None = None
    batch: str | None = None
    index: int | None = None
    generation: int = 0
    desktop: bool = False
    ports: dict[str, int] = field(default_factory=dict)
    network: str = "open"
    osworld: int | None = None  # host port, on the loopback, of its OSWorld server (docs/reference/osworld.md); None: it has none
    label: str = ""  # what it is for, in its owner's words
    created: str = field(default_factory=now)
    memory_limit: int = DEFAULT_MEMORY
    error: str | None = None
    paused: bool = False  # its programs stand still; the state is what it was

    pids_limit: int = DEFAULT_PIDS
    disk_limit: int | None = None  # bytes that it may write into its layer
    cpu_limit: float | None = None  # how many processors' time it gets at most
    image_digest: str = ""
    tools_digest: str = ""
    stream_port: int | None = None
    hostname: str = ""
    env: dict[str, str] = field(default_factory=dict)
    session: dict[str, str] = field(default_factory=dict)  # of the desktop's session, for its user's programs
    workdir: str = "/"
    pid: int = 0
    pid_start: int = 0
    master_token: str = ""
    stream_token: str = ""

    _PRIVATE = (
        "pids_limit", "image_digest", "tools_digest", "stream_port", "hostname", "env", "session", "workdir",
        "pid", "pid_start", "master_token", "stream_token",
    )  # fmt: skip

    def public(self) -> dict[str, Any]:
        """The workspace object of the API."""
        record = self.record()
        for name in self._PRIVATE:
            del record[name]
        return record

    def take_ports(self, ports: dict[int, int]) -> None:
        """Put down what is published, container port to host port; that of FACE is the OSWorld server's."""
        self.ports = {str(container): host for container, host in sorted(ports.items()) if container != FACE}
        self.osworld = ports.get(FACE)

    def published(self) -> dict[int, int]:
        """What `take_ports` has put down."""
        face = {} if self.osworld is None else {FACE: self.osworld}
        return face | {int(container): host for container, host in self.ports.items()}

    def local_ports(self) -> frozenset[int]:
        """Container ports whose host port is on the loopback only."""
        return OSWORLD_PORTS if self.osworld is not None else frozenset()

    def variables(self) -> dict[str, str]:
        """What commands started in it find in their environment. Programs that were forked along keep the environment they had."""
        known = {"TCLONE_WORKSPACE": self.id, "TCLONE_NAME": self.name, "TCLONE_GENERATION": str(self.generation)}
        if self.kind == "branch":
            known |= {"TCLONE_PARENT": self.parent or "", "TCLONE_BATCH": self.batch or "", "TCLONE_BRANCH_INDEX": str(self.index)}
        return known

    def record(self) -> dict[str, Any]:
        """Everything, as it is kept in the database."""
        record = dataclasses.asdict(self)
        record["state"] = self.state.value
        return record

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "Workspace":
        known = {item.name for item in dataclasses.fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        values["state"] = State(values["state"])
        return cls(**values)

    def move_to(self, state: State) -> None:
        """Change state; a step the state machine does not have is a defect."""
        if state is self.state:
            return
        if state not in _NEXT[self.state]:
            raise Internal(f"{self.id} cannot go from {self.state.value} to {state.value}")
        self.state = state

    @property
    def alive(self) -> bool:
        """Whether its pid 1 should be running."""
        return self.state in (State.STARTING, State.READY, State.FORKING)

    def require_awake(self, verb: str) -> None:
        """Raise Conflict while it is paused: nothing in it would answer."""
        if self.paused:
            raise Conflict(f"cannot {verb} {self.id}: it is paused; `tclone resume {self.id}` lets it go on")

    def require_ready(self, verb: str) -> None:
        """Raise Conflict unless the workspace is ready for `verb`."""
        self.require_awake(verb)
        if self.state is State.READY:
            return
        if self.state is State.FORKING:
            raise Conflict(f"{self.id} is being forked; try again when that fork has ended")
        raise Conflict(f"cannot {verb} {self.id}: it is {self.state.value}; `tclone inspect {self.id}` says why")


def check_name(name: object, what: str = "name") -> str:
    """A usable workspace name: a DNS label of at most 41 characters that cannot be taken for an id."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.endswith("-"):
        raise BadRequest(
            f"{what} {_shown(name)} is not usable: 1 to 41 of a-z, 0-9 and '-', starting and ending with a letter or digit", field=what
        )
    if _ID.fullmatch(name):
        raise BadRequest(f"{what} {name!r} looks like an id; choose another", field=what)
    return name


def branch_names(base: str, copies: int) -> list[str]:
    """NAME for one branch, NAME-0 … NAME-(N-1) for more."""
    names = [base] if copies == 1 else [f"{base}-{index}" for index in range(copies)]
    return [check_name(name) for name in names]


def check_labels(labels: object, copies: int) -> list[str]:
    """A label for each of `copies` branches, "" for those that were given none."""
    if labels is None:
        return [""] * copies
    if not isinstance(labels, list) or len(labels) > copies or not all(isinstance(label, str) for label in labels):
        raise BadRequest(f"labels must be a list of at most {copies} texts, one for each copy", field="labels")
    for label in labels:
        if len(label) > MAX_LABEL or not label.isprintable():
            raise BadRequest(f"label {_shown(label)} is not usable: at most {MAX_LABEL} characters in one line", field="labels")
    return [label.strip() for label in labels] + [""] * (copies - len(labels))


def check_network(network: object) -> str:
    """A level of outgoing traffic."""
    if network not in ("open", "none"):
        raise BadRequest("network must be `open` or `none`", field="network")
    return str(network)


def check_ports(ports: object) -> dict[int, int | None]:
    """[{"container": 3000, "host": null}] as {container: host or None}."""
    if ports is None:
        return {}
    if not isinstance(ports, list) or len(ports) > _MAX_PORTS:
        raise BadRequest(f"ports must be a list of at most {_MAX_PORTS} objects with `container` and `host`", field="ports")
    wanted: dict[int, int | None] = {}
    for item in ports:
        if not isinstance(item, dict) or set(item) - {"container", "host"}:
            raise BadRequest(f"port {_shown(item)} must be an object with `container` and `host`", field="ports")
        container, host = item.get("container"), item.get("host")
        _check_port(container)
        if host is not None:
            _check_port(host)
        if container in wanted:
            raise BadRequest(f"container port {container} is listed twice", field="ports")
        wanted[container] = host
    hosts = [host for host in wanted.values() if host is not None]
    if len(hosts) != len(set(hosts)):
        raise BadRequest("one host port is asked for twice", field="ports")
    return wanted


def _check_port(port: object) -> None:
    if isinstance(port, bool) or not isinstance(port, int) or not 1 <= port <= 65535:
        raise BadRequest(f"port {_shown(port)} is not a number from 1 to 65535", field="ports")


def _can_be_passed(text: str) -> bool:
    """Can a program get it as bytes? JSON can spell half a character ("\\ud800"), and anything but a NUL byte."""
    try:
        return b"\0" not in text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False


def check_env(env: object) -> dict[str, str]:
    """Environment variables: valid names, no NUL, at most 128 KiB in all."""
    if env is None:
        return {}
    if not isinstance(env, dict):
        raise BadRequest("env must be an object of strings")
    size = 0
    for key, value in env.items():
        if not _ENV_NAME.fullmatch(key):
            raise BadRequest(f"{_shown(key)} is not a name of an environment variable")
        if not isinstance(value, str) or not _can_be_passed(value):
            raise BadRequest(f"the value of {key} must be a string of whole characters without NUL")
        size += len(key) + len(value.encode(errors="surrogateescape")) + 2
    if size > _MAX_ENV_BYTES:
        raise BadRequest(f"env has {size} bytes; at most {_MAX_ENV_BYTES} fit")
    return dict(env)


def check_argv(argv: object, what: str = "argv") -> list[str]:
    """A command: a non-empty list of strings without NUL, at most 1 MiB."""
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) for part in argv):
        raise BadRequest(f"{what} must be a non-empty list of strings")
    if not all(_can_be_passed(part) for part in argv) or not argv[0]:
        raise BadRequest(f"{what} must have a program name, whole characters and no NUL")
    if sum(len(part) for part in argv) > 1 << 20:
        raise BadRequest(f"{what} is longer than 1 MiB")
    return list(argv)


def check_integer(value: object, what: str, low: int, high: int, field: str | None = None) -> int:
    """A whole number in its bounds; `field` is the request's that it came in."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise BadRequest(f"{what} must be a whole number from {low} to {high}, not {_shown(value)}", field=field)
    return value


def check_cpus(value: object) -> float:
    """How many processors' time something may use: a number in its bounds, to a hundredth."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not MIN_CPUS <= value <= MAX_CPUS:
        raise BadRequest(f"cpus must be a number from {MIN_CPUS} to {MAX_CPUS}, not {_shown(value)}", field="cpus")
    return round(float(value), 2)


def check_reference(ref: str) -> str:
    """An id or a name as it may stand in a path."""
    if not _NAME.fullmatch(ref):
        raise BadRequest(f"{_shown(ref)} is neither an id nor a name")
    return ref


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
