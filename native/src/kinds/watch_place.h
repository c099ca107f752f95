/* The file that a watch of inotify or fanotify is on: /proc names it by its inode and its file handle. */
#ifndef TCLONE_WATCH_PLACE_H
#define TCLONE_WATCH_PLACE_H

#include "../plan.h"

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

#endif
