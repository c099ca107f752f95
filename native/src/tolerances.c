/*
 * The errors that operations may meet, with the reasons. What is lack of something that comes and goes (memory, descriptors, room on a disk), or nothing
 * that the call is known to answer, is in none of them: a branch that was made in spite of it would differ from its source, and nobody would be told.
 */
#include "tolerances.h"

#include <errno.h>
#include <stddef.h>

#define MOST 16

static const unsigned char errors[TOLERANCES][MOST] = {
    [TOLERATE_NOTHING] = { 0 },
    /* The engine may run without CAP_SYS_RESOURCE, CAP_AUDIT_CONTROL or CAP_SYS_NICE; docs/reference/state.md says what a branch then lacks. */
    [TOLERATE_LACKING_RIGHTS] = { EPERM },
    /* livefork does the same again from outside, with its own rights, and tells when that fails (attributes_finish). */
    [TOLERATE_SET_FROM_OUTSIDE] = { EPERM, EBUSY, EINVAL },
    /* Of several that use a name the first one removes it; or there was none to make room for; or its directory, removed, is entered by root.c. */
    [TOLERATE_GONE_NAME] = { ENOENT, ENOTDIR },
    /* Whoever has the name now is another one, and what stands for its former owner goes without. */
    [TOLERATE_TAKEN_NAME] = { EADDRINUSE },
    /* A mount namespace without /proc; then what it would write to, and close, is not open. */
    [TOLERATE_NO_LOGIN_FILE] = { ENOENT, ENOTDIR, EPERM, EBADF },
    /* A seccomp filter may have forced it on already. */
    [TOLERATE_FORCED_SPECULATION] = { EPERM, ENXIO },
    /* An area that the kernel would not merge anyhow. */
    [TOLERATE_UNCHANGEABLE_MERGING] = { EINVAL },
    /* A kernel without them, or an area that cannot have one: a name only tells people what memory is for. */
    [TOLERATE_NO_MEMORY_NAMES] = { EINVAL, EBADF },
    /* A page that may not be touched, or is behind the end of a file: the lock is set all the same. */
    [TOLERATE_UNTOUCHABLE_PAGES] = { ENOMEM, EAGAIN },
    /* What the branch's kernel, interfaces, routes or rights do not allow, or what does not go with the socket's state. */
    [TOLERATE_OPTION_REFUSED] = { EPERM, EACCES, ENOENT, ENODEV, EINVAL, ENOPROTOOPT, EOPNOTSUPP, EADDRNOTAVAIL, EBUSY, EISCONN, ENOTCONN, EDOM, ERANGE },
    /* Before Linux 5.15. */
    [TOLERATE_OPTION_UNKNOWN] = { ENOPROTOOPT, EOPNOTSUPP },
    /* A mount shows some options that nobody can ask for. */
    [TOLERATE_MOUNT_OPTION_REFUSED] = { EINVAL, EPERM, ENOENT, EOPNOTSUPP },
    /* An interface that the branch lacks. */
    [TOLERATE_INTERFACE_MISSING] = { ENODEV, ENETDOWN, EINVAL, EPERM },
    [TOLERATE_NO_MEMBER] = { ENODEV, EADDRNOTAVAIL, EADDRINUSE, EINVAL, ENOPROTOOPT },
    /* A socket without an interface cannot be in a group. */
    [TOLERATE_NO_FANOUT] = { EINVAL, ENODEV },
    /* No way leads there in the branch: sending to it failed in the source as well, or will fail in the branch as it should. */
    [TOLERATE_NO_ROUTE] = { ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL, EACCES, EPERM, EINVAL, ENETDOWN, ENODEV },
    [TOLERATE_CONNECT_UNDER_WAY] = { EINPROGRESS, ECONNREFUSED, ECONNRESET, ECONNABORTED, ETIMEDOUT, ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL, EACCES,
                                     EPERM, EINVAL, ENETDOWN },
    /* It is shut down all the same. */
    [TOLERATE_NOT_CONNECTED] = { ENOTCONN },
    /* What is wanted is the error that comes of it. */
    [TOLERATE_NO_READER] = { EPIPE, EAGAIN, ECONNRESET, ENOTCONN },
    /* The queue has less in it, or less room, than at most: nothing is left to do. */
    [TOLERATE_FULL] = { EAGAIN },
    /* A socket whose queue overflows is what is wanted. */
    [TOLERATE_FULL_NETLINK] = { ENOBUFS, EAGAIN, ECONNREFUSED, EPERM, EINVAL, EOPNOTSUPP },
    /* A datagram from or to an address that the branch lacks is lost, as datagrams may be; and so are all where there is no IPv6. */
    [TOLERATE_NO_PACKET_WAY] = { ENETUNREACH, EHOSTUNREACH, EADDRNOTAVAIL, EACCES, EPERM, EINVAL, ENETDOWN, ENODEV, EMSGSIZE, EAFNOSUPPORT, EBADF },
    /* What could not be opened needs nothing more. */
    [TOLERATE_NOT_OPENED] = { EBADF },
    [TOLERATE_LEADER_ALREADY] = { EPERM },
    /* A timer that has not expired, which only shows when the batch runs; or that a change of the clock has cancelled. */
    [TOLERATE_NO_TICKS] = { EINVAL, ECANCELED },
    /* In /proc the kernel finds a position by making the text up to there, and that of a branch may be shorter, or of a process that ends. */
    [TOLERATE_SHORTER_TEXT] = { EINVAL, ESRCH, ENOENT, EACCES, EPERM, EIO },
    /* A hint to the disk, which a file system may not take. */
    [TOLERATE_HINT_REFUSED] = { EINVAL, EPERM, EOPNOTSUPP },
    /* A thread of a process that does not have the file itself: it does not exist yet (docs/reference/state.md). */
    [TOLERATE_OWNER_GONE] = { ESRCH },
    /* A file of /dev/shm is open for writing until all processes have let go of what it was made from; a nested user namespace may not own it. */
    [TOLERATE_LEASE_LOST] = { EAGAIN, EACCES, EPERM },
    /* The lease breaks by an opening that does not wait for that; one from a root without /proc, or without the right, breaks none. */
    [TOLERATE_LEASE_BROKEN] = { EAGAIN, ENOENT, ENOTDIR, EACCES, EPERM, ENXIO, ETXTBSY },
    /* The kernel sets it by itself for a file, and refuses to be told so in some groups. */
    [TOLERATE_EVENT_ON_CHILD] = { EINVAL, ENOTDIR },
    /* Where there is no /dev/shm, or it takes no watches, lost events are not told of; what comes behind it then finds nothing. */
    [TOLERATE_NO_SCRATCH] = { ENOENT, ENOTDIR, EACCES, EPERM, EROFS, EEXIST, ELOOP, EBADF, ENODEV, EXDEV, EOPNOTSUPP, EINVAL, EAGAIN, ENOTEMPTY },
    /* Its other end is outside (a session of exec): the terminal is not there, and its mount is not, either. */
    [TOLERATE_TERMINAL_MISSING] = { ENOENT },
};

_Static_assert((int)TOLERANCES <= OP_TOLERANCES, "an operation's flags have room for so many");

void tolerances_fill(uint64_t table[OP_TOLERANCES][2])
{
    for (size_t i = 0; i < TOLERANCES; i++)
        for (size_t k = 0; k < MOST && errors[i][k]; k++)
            table[i][errors[i][k] / 64] |= 1ull << errors[i][k] % 64;
}
