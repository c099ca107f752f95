/*
 * How the mounts of a namespace come about in a branch. A mount namespace starts as a copy of the one that it is made in; what differs from that
 * is made by the same operations, with the same privileges, that a program inside would need: so nothing can be unmounted or written to in the
 * branch that could not be in the source.
 */
#ifndef TCLONE_MOUNT_PLAN_H
#define TCLONE_MOUNT_PLAN_H

#include "mountinfo.h"

#include "error.h"

enum mount_way {
    WAY_INHERITED,              /* is there from the start */
    WAY_WITH_PARENT,            /* came along when a mount above it was cloned with all that hangs on it */
    WAY_CLONED,                 /* a clone of what is at source->point + path in the namespace it starts from */
    WAY_OWN,                    /* a clone of `path` in a file system that was made for this workspace */
};

struct mount_step {
    enum mount_way way;
    const struct mount *wanted;
    const struct mount *source; /* WAY_OWN: none */
    char *path;                 /* below the root of source, or in the file system; "" or "/…" */
    bool recursive;             /* with the mounts below */
    uint64_t attributes;        /* what it has when made */
    int file_system;            /* WAY_OWN: index */
    int slot;                   /* emission: auxiliary slot of its descriptor, -1 = none */
};

/* A file system that only this namespace, or others made inside, have. */
struct own_file_system {
    uint64_t device;
    const struct mount *mount;  /* one of its mounts */
};

struct mount_steps {
    struct mount_step *list;    /* in the order of the wanted table */
    int count;
    bool new_root;              /* the root is another: it is built beside the old one, which is left then */
    struct own_file_system *file_systems;
    int file_system_count;
    const struct mount **unwanted;      /* are there from the start and go away, lowest first */
    int unwanted_count;
};

/*
 * From the mounts of `start` to those of `wanted`. Fails with "unsupported", naming the mount, if there is no way. `locked`: what is there from the start
 * cannot be unmounted, since it comes from a namespace with another owner.
 */
int mount_steps_find(const struct mount_table *start, const struct mount_table *wanted, bool locked, struct mount_steps *steps, struct error *err);
/* Is a single terminal's node mounted there? */
bool mount_is_terminal(const struct mount *mount);
/* Is there nothing to do? */
bool mount_steps_are_empty(const struct mount_steps *steps);

#endif
