"""How much of the pool a workspace may write: btrfs' simple quotas, which count each block for the subvolume that wrote it.

They cost next to nothing, and nothing as long as no workspace has a limit: the first limit turns them on. Blocks that a fork's branch shares
with its source stay the source's; a branch's limit is for what it writes itself. Blocks that somebody else still has are counted on after
their writer has removed the file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

from engine.errors import Internal, Unsupported

_QUOTA_CTL = 0xC0109428
_QGROUP_LIMIT = 0x8030942B
_INO_LOOKUP = 0xD0009412
_TREE_SEARCH = 0xD0009411
_ENABLE_SIMPLE = 4
_MAX_REFERENCED = 1 << 0
_FIRST_FREE_OBJECTID = 256
_QUOTA_TREE = 8
_QGROUP_INFO, _QGROUP_LIMIT_ITEM = 242, 244
# struct btrfs_ioctl_search_key and btrfs_ioctl_search_header
_KEY, _HEADER = struct.Struct("=7Q4I4Q"), struct.Struct("=3Q2I")
_SEARCH_BYTES = 4096
_ANY = (1 << 64) - 1


def limit(layer: int, size: int, may_turn_on: bool) -> None:
    """Let the subvolume with descriptor `layer` write at most `size` bytes; then writes there fail with EDQUOT.

    `may_turn_on`: the file system is ours, so quotas may be turned on when they are off (a file system that has them is for Linux 6.7 and newer
    only). Raises Unsupported, which says what is missing, Internal.
    """
    wanted = struct.pack("=6Q", _id(layer), _MAX_REFERENCED, size, 0, 0, 0)
    try:
        try:
            fcntl.ioctl(layer, _QGROUP_LIMIT, wanted)
        except OSError as error:
            # ENOTCONN, or EINVAL of older kernels: there are no quotas yet.
            if error.errno not in (errno.ENOTCONN, errno.EINVAL):
                raise
            _turn_on(layer, may_turn_on)
            fcntl.ioctl(layer, _QGROUP_LIMIT, wanted)
    except OSError as error:
        raise Internal(f"the limit of a workspace's disk: {error.strerror}") from error


def use(layer: int) -> int | None:
    """Bytes that are counted for a subvolume, as of the file system's last commit (up to 30 s ago); None without quotas."""
    found = _quota_item(layer, _QGROUP_INFO)
    # struct btrfs_qgroup_info_item: generation, referenced, …
    return struct.unpack_from("=2Q", found)[1] if found is not None else None


def _turn_on(layer: int, may: bool) -> None:
    if not may:
        raise Unsupported(
            "the pool lies on a btrfs of the host's, which has no quotas: turn them on there with `btrfs quota enable --simple`, or give no disk limit"
        )
    try:
        fcntl.ioctl(layer, _QUOTA_CTL, struct.pack("=2Q", _ENABLE_SIMPLE, 0))
    except OSError as error:
        raise Unsupported(f"this kernel's btrfs has no simple quotas ({error.strerror}): Linux 6.7 has them; or give no disk limit") from error


def _id(layer: int) -> int:
    """The subvolume's id, which is that of its quota group, too."""
    answer = bytearray(struct.pack("=2Q", 0, _FIRST_FREE_OBJECTID) + bytes(4080))
    fcntl.ioctl(layer, _INO_LOOKUP, answer)
    return int.from_bytes(answer[:8], "little")


def _quota_item(layer: int, kind: int) -> bytes | None:
    """The quota group's item of a kind, as it is in the file system's tree of quotas."""
    identity = _id(layer)
    key = _KEY.pack(_QUOTA_TREE, 0, 0, identity, identity, 0, _ANY, kind, kind, 1, 0, 0, 0, 0, 0)
    answer = bytearray(key + bytes(_SEARCH_BYTES - len(key)))
    try:
        fcntl.ioctl(layer, _TREE_SEARCH, answer)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return None
        raise Internal(f"the use of a workspace's disk: {os.strerror(error.errno or 0)}") from error
    if _KEY.unpack_from(answer)[9] == 0:
        return None
    length = _HEADER.unpack_from(answer, _KEY.size)[4]
    start = _KEY.size + _HEADER.size
    return bytes(answer[start : start + length])
