/* From a file handle to a path in the workspace. */
#ifndef TCLONE_HANDLE_H
#define TCLONE_HANDLE_H

#include <fcntl.h>

#include "../world.h"

#ifndef AT_HANDLE_FID
#define AT_HANDLE_FID 0x200
#endif
#define UUID_SIZE 16

struct handle {
    int type;
    unsigned size;
    unsigned char bytes[MAX_HANDLE_SZ];
    unsigned char uuid[UUID_SIZE];      /* of the file system; zeros = not told */
};

/* From a line of fdinfo. */
int handle_parse(const char *line, struct handle *handle);
bool handle_is_of_overlay(const struct handle *handle);
/* NULL = not found; *hidden: the file exists, but not under the path that it has in its layer. */
char *handle_path_on_overlay(const struct world *world, uint64_t inode, const struct handle *overlay, bool *hidden, struct error *err);
/* A file system that is mounted in the workspace itself (tmpfs on /dev/shm, devpts): open the handle there. */
char *handle_path_on_mount(const struct world *world, uint64_t inode, unsigned device, const struct handle *handle, struct error *err);
/* The same for one that only a nested mount namespace has: *mounts is that. */
struct mount_world;
char *handle_path_in_namespaces(const struct world *world, uint64_t inode, unsigned device, const struct handle *handle,
                                const struct mount_world **mounts);
/*
 * A name of a file that is open and was opened by a name which it has lost meanwhile, in the overlay or in a file system that only nested mount namespaces
 * have; NULL = none that can be found. *mounts, where the lost name led to it, becomes where the one found does (NULL = the workspace's own mounts).
 */
char *handle_find_name(const struct world *world, int fd, uint64_t inode, const struct mount_world **mounts);

#endif
