"""A workspace's network namespace, and the holder namespace where the other ends of all their links lie.

A namespace is kept by a bind mount at `<run>/netns/<id>`: it outlives every process, the engine's too, and the next engine
opens it again. Nothing routes: `eth0` is a veth whose peer lies in the holder, which has no address, forwards nothing and
drops what arrives. The link exists only so that a default route does, and with it the way of every outgoing packet through
the namespace's own nft output hook (firewall.py), where it is redirected or refused.

All functions here block (about 6 ms to create one) and belong in a thread.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from engine import syscalls
from engine.errors import BadRequest, Conflict, Internal, LimitReached, NotFound, Unavailable
from engine.network.settings import ADDRESS, GATEWAY, HARDWARE_ADDRESS, INTERFACE, PREFIX_LENGTH

_MS_BIND = 0x1000
_NS_GET_NSTYPE = 0xB703
_THREAD_NAMESPACE = "/proc/thread-self/ns/net"
_LOOPBACK_INDEX = 1
# A fixed index: processes hold it in sockets and addresses, so a branch must have the same one.
_INTERFACE_INDEX = 2
_HOLDER = ".holder"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_COMMAND_TIMEOUT = 20.0

# Namespaces inherit IPv4 settings from the host's, which may forward: say everything that matters.
_CLOSED = {
    "net/ipv4/ip_forward": "0",
    "net/ipv6/conf/all/disable_ipv6": "1",
    "net/ipv6/conf/default/disable_ipv6": "1",
}
_WORKSPACE_SYSCTLS = _CLOSED | {
    # ::1 works; no other IPv6 address exists.
    "net/ipv6/conf/lo/disable_ipv6": "0",
    # As in Docker: any user may bind port 80 and ping.
    "net/ipv4/ip_unprivileged_port_start": "0",
    "net/ipv4/ping_group_range": "0 2147483647",
    # Replies of the gate come from 127.0.0.1 to the interface's address, over lo.
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}
_HOLDER_RULES = """
table inet tclone {
  chain arrivals { type filter hook prerouting priority -300; policy drop; }
  chain departures { type filter hook output priority -300; policy drop; }
}
"""


def check_id(workspace_id: str) -> str:
    """The id, when it may be a file name here. Raises BadRequest."""
    if not _NAME.fullmatch(workspace_id):
        raise BadRequest(f"{workspace_id!r} is no workspace id: letters, digits, '.', '_', '-', at most 64, no leading sign")
    return workspace_id


@contextlib.contextmanager
def _returning() -> Iterator[None]:
    """Run a block that may move the calling thread to other network namespaces; then move it back."""
    own = os.open(_THREAD_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield
    finally:
        try:
            syscalls.setns(own, syscalls.CLONE_NEWNET)
        finally:
            os.close(own)


def _is_network_namespace(fd: int) -> bool:
    try:
        return fcntl.ioctl(fd, _NS_GET_NSTYPE) == syscalls.CLONE_NEWNET
    except OSError:
        return False


def _write_sysctls(values: dict[str, str]) -> None:
    """Settings of the calling thread's network namespace (/proc/sys/net always shows that one)."""
    for name, value in values.items():
        try:
            # Unbuffered: the kernel's refusal must come from the write, where it is handled.
            with open(f"/proc/sys/{name}", "wb", buffering=0) as file:
                file.write(value.encode())
        except FileNotFoundError:
            # A host without IPv6 has nothing to switch off.
            if not name.startswith("net/ipv6/"):
                raise


def _apply_rules(ruleset: str) -> None:
    """Hand one atomic ruleset to nft in the calling thread's namespace. Raises Unavailable, Internal."""
    try:
        done = subprocess.run(
            ["nft", "-f", "-"], input=ruleset, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT, check=False
        )
    except FileNotFoundError:
        raise Unavailable("nft is not installed; install the package `nftables`") from None
    except subprocess.TimeoutExpired:
        raise Internal(f"nft gave no answer within {_COMMAND_TIMEOUT:.0f} s") from None
    if done.returncode != 0:
        raise Internal(f"nft refused the rules: {done.stderr.strip()[:500]}")


def _bind(source: str, path: Path) -> None:
    """Keep the network namespace at `source` (a file of /proc) by a mount at `path`."""
    path.touch(mode=0o600)
    try:
        syscalls.mount(source, str(path), None, _MS_BIND)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _unbind(path: Path) -> None:
    """Let go of the namespace kept at `path`. Other mount namespaces' copies of the mount go with the file itself."""
    try:
        syscalls.umount(str(path), syscalls.MNT_DETACH)
    except OSError as error:
        # EINVAL: a file left by a creation that never got to its mount.
        if error.errno not in (errno.EINVAL, errno.ENOENT):
            raise
    path.unlink(missing_ok=True)


def _open_bound(path: Path) -> int:
    """Descriptor of the namespace kept at `path`. Raises FileNotFoundError when there is none."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    if not _is_network_namespace(fd):
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, "not a network namespace", str(path))
    return fd


def open_holder(directory: Path) -> int:
    """Descriptor of the holder namespace below `directory`, made when it does not exist yet."""
    path = directory / _HOLDER
    try:
        return _open_bound(path)
    except FileNotFoundError:
        path.unlink(missing_ok=True)
    with _returning():
        syscalls.unshare(syscalls.CLONE_NEWNET)
        _write_sysctls(_CLOSED)
        _apply_rules(_HOLDER_RULES)
        _bind(_THREAD_NAMESPACE, path)
    return _open_bound(path)


def delete_holder(directory: Path) -> None:
    _unbind(directory / _HOLDER)


def delete_path(directory: Path, workspace_id: str) -> None:
    """Remove a namespace that nobody has open here."""
    _unbind(directory / check_id(workspace_id))


def listed(directory: Path) -> list[str]:
    """Ids of everything below `directory`, complete or not."""
    try:
        return sorted(entry.name for entry in os.scandir(directory) if entry.name != _HOLDER)
    except FileNotFoundError:
        return []


@dataclass
class NetworkNamespace:
    """One workspace's namespace: `path` is its bind mount (None before `keep`), `fd` its descriptor (-1 once closed)."""

    workspace_id: str
    path: Path | None
    fd: int
    # Threads use `fd`; a number that is closed meanwhile could already belong to something else.
    _in_use: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def make(cls, holder: int) -> NetworkNamespace:
        """A namespace with its links up, without a name yet: it ends when its descriptor is closed.

        It has no rules either, and is no less closed for it: its packets end in the holder. Raises LimitReached when the host
        allows no more namespaces, Internal.
        """
        try:
            with _returning():
                syscalls.unshare(syscalls.CLONE_NEWNET)
                fd = os.open(_THREAD_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    _write_sysctls(_WORKSPACE_SYSCTLS)
                    _make_links(holder)
                except BaseException:
                    os.close(fd)
                    raise
            return cls("(spare)", None, fd)
        except (OSError, NetlinkError) as error:
            number = error.code if isinstance(error, NetlinkError) else error.errno
            if number in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise LimitReached(f"no network namespace can be made: {error}; remove a workspace") from error
            raise Internal(f"cannot make a network namespace: {error}") from error

    def keep(self, directory: Path, workspace_id: str) -> None:
        """Give the namespace its name, from which on it outlives the engine. Raises Conflict (the name is taken), OSError."""
        path = directory / check_id(workspace_id)
        try:
            os.close(_open_bound(path))
        except FileNotFoundError:
            path.unlink(missing_ok=True)
        else:
            raise Conflict(f"{workspace_id} has a network namespace already; remove the workspace first")
        _bind(self.reference, path)
        self.workspace_id, self.path = workspace_id, path

    @classmethod
    def open(cls, directory: Path, workspace_id: str) -> NetworkNamespace:
        """Find the namespace that an earlier engine made. Raises NotFound."""
        path = directory / check_id(workspace_id)
        try:
            return cls(workspace_id, path, _open_bound(path))
        except FileNotFoundError:
            raise NotFound(f"the network namespace of {workspace_id} is gone (a reboot removes it)") from None

    @property
    def reference(self) -> str:
        """A path of the namespace that is good in any mount namespace, for as long as this process has it open."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def socket(self, family: int, kind: int) -> socket.socket:
        """A non-blocking socket of this namespace. Raises NotFound once it is closed, OSError."""
        with self._in_use:
            self._check_open()
            made = syscalls.socket_in(self.fd, family, kind)
        made.setblocking(False)
        return made

    def open_table(self, name: str) -> int:
        """A descriptor of /proc/net/`name` as it is in this namespace. Raises NotFound once it is closed, OSError."""
        with self._in_use:
            self._check_open()
            with syscalls.namespace_of(self.fd, syscalls.CLONE_NEWNET, "net"):
                return os.open(f"/proc/thread-self/net/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def apply(self, ruleset: str) -> None:
        """Replace the rules, all at once. Raises Unavailable, Internal."""
        with self._in_use, _returning():
            self._check_open()
            syscalls.setns(self.fd, syscalls.CLONE_NEWNET)
            _apply_rules(ruleset)

    def _check_open(self) -> None:
        if self.fd < 0:
            raise NotFound(f"the network of {self.workspace_id} is being removed")

    def close(self) -> None:
        """Forget the descriptor; the namespace stays."""
        with self._in_use:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1

    def delete(self) -> None:
        """Remove the mount; the kernel frees the namespace with the last process or socket in it."""
        self.close()
        if self.path is not None:
            _unbind(self.path)


def _make_links(holder: int) -> None:
    """lo and eth0 of the calling thread's namespace; eth0's peer goes straight to the holder, so it is seen nowhere else."""
    with IPRoute() as route:
        route.link("set", index=_LOOPBACK_INDEX, state="up")
        route.link(
            "add",
            ifname=INTERFACE,
            kind="veth",
            index=_INTERFACE_INDEX,
            address=HARDWARE_ADDRESS,
            peer={"net_ns_fd": holder},
        )
        route.link("set", index=_INTERFACE_INDEX, state="up")
        route.addr("add", index=_INTERFACE_INDEX, address=ADDRESS, prefixlen=PREFIX_LENGTH)
        route.route("add", dst="0.0.0.0/0", gateway=GATEWAY, oif=_INTERFACE_INDEX)
        (link,) = route.get_links(_INTERFACE_INDEX)
        peer = link.get_attr("IFLA_LINK")
    # Without its peer up the interface has no carrier, and browsers report that they are offline.
    own = os.open(_THREAD_NAMESPACE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syscalls.setns(holder, syscalls.CLONE_NEWNET)
        with IPRoute() as route:
            route.link("set", index=peer, state="up")
    finally:
        syscalls.setns(own, syscalls.CLONE_NEWNET)
        os.close(own)
