/*
 * Which errors an operation of a branch may meet without the branch becoming another one than its source, and why (tolerances.c). Every other error of an
 * operation ends the branch, and is told with the object's name.
 */
#ifndef TCLONE_TOLERANCES_H
#define TCLONE_TOLERANCES_H

#include "op.h"

#include <stdbool.h>
#include <stdint.h>

enum tolerance {
    TOLERATE_NOTHING,
    TOLERATE_LACKING_RIGHTS,        /* EPERM: the source has what only somebody privileged sets */
    TOLERATE_SET_FROM_OUTSIDE,
    TOLERATE_GONE_NAME,
    TOLERATE_TAKEN_NAME,
    TOLERATE_NO_LOGIN_FILE,
    TOLERATE_FORCED_SPECULATION,
    TOLERATE_UNCHANGEABLE_MERGING,
    TOLERATE_NO_MEMORY_NAMES,
    TOLERATE_UNTOUCHABLE_PAGES,
    TOLERATE_OPTION_REFUSED,
    TOLERATE_OPTION_UNKNOWN,
    TOLERATE_MOUNT_OPTION_REFUSED,
    TOLERATE_INTERFACE_MISSING,
    TOLERATE_NO_MEMBER,
    TOLERATE_NO_FANOUT,
    TOLERATE_NO_ROUTE,
    TOLERATE_CONNECT_UNDER_WAY,
    TOLERATE_NOT_CONNECTED,
    TOLERATE_NO_READER,
    TOLERATE_FULL,
    TOLERATE_FULL_NETLINK,
    TOLERATE_NO_PACKET_WAY,
    TOLERATE_NOT_OPENED,
    TOLERATE_LEADER_ALREADY,
    TOLERATE_NO_TICKS,
    TOLERATE_SHORTER_TEXT,
    TOLERATE_HINT_REFUSED,
    TOLERATE_OWNER_GONE,
    TOLERATE_LEASE_LOST,
    TOLERATE_LEASE_BROKEN,
    TOLERATE_EVENT_ON_CHILD,
    TOLERATE_NO_SCRATCH,
    TOLERATE_TERMINAL_MISSING,
    TOLERANCES
};

/* In the flags of an operation: TOLERATING(NO_ROUTE). */
#define TOLERATING(what) OP_TOLERATE(TOLERATE_##what)

/* The table that the branch looks at: a bit for each error below 128. */
void tolerances_fill(uint64_t table[OP_TOLERANCES][2]);

#endif
