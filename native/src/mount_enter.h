/* Reaching into mount namespaces of the source. */
#ifndef TCLONE_MOUNT_ENTER_H
#define TCLONE_MOUNT_ENTER_H

#include "error.h"

/*
 * Run `work` in a thread that has entered the mount namespace behind `mnt_ns`: its root is that of the namespace, "/proc" is not ours there.
 * Returns what work returned, or -1.
 */
int mount_enter(int mnt_ns, int (*work)(void *context, struct error *err), void *context, struct error *err);

/*
 * An O_PATH descriptor of a mount point, in the namespace of the calling thread; symbolic links are not followed. No file system is asked for anything
 * (a FUSE server on the way might never answer): the kernel holds the names of mount points as long as something is mounted there.
 */
int mount_open_point(const char *path);

/*
 * The mount at `path` (in the namespace of the calling thread, symbolic links not followed) without what is mounted in it, as a detached copy
 * through which reading changes no times.
 */
int mount_copy(const char *path, struct error *err);

#endif
