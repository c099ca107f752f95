/* Whether two ways lead to the same file. */
#ifndef TCLONE_IDENTITY_H
#define TCLONE_IDENTITY_H

#include <stdbool.h>

/*
 * Is the file that the link `open_path` (below /proc) leads to the one behind `fd`? Device and inode do not tell: all layers of an overlay show one
 * device, and subvolumes of a btrfs number their inodes alike. The handle of a file names subvolume and generation, too.
 */
bool identity_same(const char *open_path, int fd);

#endif
