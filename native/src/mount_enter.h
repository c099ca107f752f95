/* Reaching into mount namespaces of the source. */
#ifndef TCLONE_MOUNT_ENTER_H
#define TCLONE_MOUNT_ENTER_H

#include "error.h"

/*
 * Run `work` in the mount namespace behind `mnt_ns`: the root is that of the namespace meanwhile, and "/proc" is not ours. Returns what work returned,
 * or -1. For one thread of the program only, which does not share its root with the others afterwards (a thread for each visit took up to 4 ms of the pause
 * on a busy machine).
 */
int mount_enter(int mnt_ns, int (*work)(void *context, struct error *err), void *context, struct error *err);

/*
 * Run `work` in a private copy of the mount namespace that the calling thread has entered, of which the user namespace `user_ns` is the owner (-1 = ours).
 * Returns the descriptor that work returned, or -1. What is mounted or unmounted there nobody sees.
 */
int mount_in_copy(int user_ns, int (*work)(void *context, struct error *err), void *context);

/*
 * An O_PATH descriptor of a mount point, in the namespace of the calling thread; symbolic links are not followed. No file system is asked for anything
 * if it can be helped (a FUSE server on the way might never answer): the kernel holds the names of mount points as long as something is mounted there.
 * Still, refuse FUSE mounts before.
 */
int mount_open_point(const char *path);

/*
 * The mount at `path` (in the namespace of the calling thread, symbolic links not followed) without what is mounted in it, as a detached copy
 * through which reading changes no times.
 */
int mount_copy(const char *path, struct error *err);

#endif
