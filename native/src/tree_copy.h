/* A whole directory tree from one tmpfs to another: what a workspace keeps in /dev, in /dev/shm and in file systems that it mounted itself. */
#ifndef TCLONE_TREE_COPY_H
#define TCLONE_TREE_COPY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "error.h"

struct tree_copy {
    const char *label;          /* for messages: where the tree is mounted */
    int from, to;               /* directories; `to` is empty but for what `leave` knows. Reading leaves times alone if `from` lies on a noatime mount */
    /* Called for each regular file: true = the content comes from elsewhere; `fd` (read and write) may be kept by dup. NULL = copy all. */
    bool (*claim)(void *context, const struct stat *st, int fd);
    /* Called for each entry of the tree's root: true = nothing is done about it. NULL = copy all. */
    bool (*leave)(void *context, const char *name);
    void *context;
};

/*
 * Directories of any depth, files (data extents only), links, hard links, fifos, devices, socket files (which nobody serves), owners, modes,
 * times, extended attributes; and inode numbers as far as a tmpfs gives them out in order. Nothing in the tree is followed.
 */
int tree_copy(struct tree_copy *copy, struct error *err);

/* The data extents of a regular file of `size` bytes; `to` has that size already. Returns the bytes copied, or -1 with errno. */
int64_t copy_extents(int from, int to, uint64_t size);

#define TREE_MAX_ENTRIES 200000

#endif
