/*
 * What inotify and fanotify have in common: descriptors whose fdinfo has a line for each watch, which names a file by its inode and its file handle,
 * and whose unread events cannot be looked at.
 */
#ifndef TCLONE_WATCH_H
#define TCLONE_WATCH_H

#include "../plan.h"

#define WATCH_QUEUE_MOST 131072     /* events that a queue may hold (a sysctl) before it would be too expensive to fill one */

struct mount_world;             /* mounts.h */

struct watch_place {
    char *path;                 /* or: */
    const struct description *held;     /* an open descriptor of it. Neither: removed, so that nothing can be watched again */
    const struct mount_world *mounts;   /* where the path leads to it; NULL = the workspace's own mounts */
};

/* From a line of fdinfo; `device` as it is printed there. Refuses a file that exists but cannot be found. `label` is of the descriptor. */
int watch_place_find(const struct world *world, const char *line, uint64_t inode, unsigned device, const char *label, struct watch_place *place,
                     struct error *err);
bool watch_place_exists(const struct watch_place *place);
/* The path to give to the system call, in the arena; that of a held descriptor is a link to be followed, others are not. */
uint64_t watch_place_path(struct plan *plan, const struct watch_place *place);

/* What fdinfo tells of a descriptor that is open here; the caller frees it. */
char *watch_fdinfo(const struct description *description, struct error *err);
typedef int watch_take(const struct world *world, const struct description *description, const char *line, struct error *err);
/* Calls `take` for each part of `fdinfo` that begins with `start`, cut off in place. Ends with the first failure. */
int watch_each(const struct world *world, const struct description *description, char *fdinfo, const char *start, watch_take *take, struct error *err);
/* Whether events wait to be read. */
bool watch_unread(const struct description *description);
/* How many events a queue of `kind` ("inotify", "fanotify") holds; 0 when it cannot be filled. */
int watch_queue_limit(const char *kind);
/* For the first thread of each process: calls `emit` for what it holds, was captured through it, and `lost` says so of. */
void watch_emit_lost(struct batch *batch, const struct thread *thread, bool (*lost)(const struct description *description),
                     void (*emit)(struct batch *batch, const struct description *description));
/* Whether the process whose descriptor it is sees the workspace's own root. */
bool watch_holder_at_root(const struct description *description);

#endif
