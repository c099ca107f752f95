/*
 * What a workspace has put into its /dev or taken out of it: nodes of devices, links, files, a logger's socket. A branch is born with the same nodes as
 * every workspace. Those that are as in the source stay, with their inode numbers; all else is made anew.
 */
#include "device_directory.h"
#include "proc.h"
#include "tree_copy.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LABEL "/dev"

struct sides {
    int from, to;
    dev_t device;               /* of `to`: what has another one is mounted there */
    int error;                  /* errno of a look at one of them that failed; 0 = none did */
};

/* Is there an entry of that name? Lack of memory is no answer. */
static bool look(struct sides *sides, int directory, const char *name, struct stat *st)
{
    if (fstatat(directory, name, st, AT_SYMLINK_NOFOLLOW) == 0)
        return true;
    if (errno != ENOENT)
        sides->error = errno;
    return false;
}

static bool same_target(struct sides *sides, const char *name)
{
    char ours[PATH_MAX], theirs[PATH_MAX];
    ssize_t length = readlinkat(sides->from, name, ours, sizeof ours), other = readlinkat(sides->to, name, theirs, sizeof theirs);
    if (length < 0 || other < 0)
        sides->error = errno;
    return length >= 0 && other == length && memcmp(ours, theirs, (size_t)length) == 0;
}

/* Only nodes and links can be the same without a look at their content. */
static bool is_same(struct sides *sides, const char *name, const struct stat *theirs)
{
    struct stat ours;
    if (!look(sides, sides->from, name, &ours) || ours.st_mode != theirs->st_mode || ours.st_uid != theirs->st_uid
        || ours.st_gid != theirs->st_gid)
        return false;
    if (S_ISCHR(ours.st_mode) || S_ISBLK(ours.st_mode))
        return ours.st_rdev == theirs->st_rdev;
    return S_ISLNK(ours.st_mode) && same_target(sides, name);
}

static int remove_others(struct sides *sides, struct error *err)
{
    int listing = openat(sides->to, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = listing < 0 ? NULL : fdopendir(listing);
    if (!directory)
        return fail_errno(err, "cannot list the branch's " LABEL);
    struct dirent *found;
    while (!err->code && (found = directory_next(directory, LABEL, err))) {
        struct stat st;
        const char *name = found->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
            continue;
        if (fstatat(sides->to, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
            fail_errno(err, "cannot look at %s in the branch's " LABEL, name);
        else if (st.st_dev == sides->device && !is_same(sides, name, &st) && unlinkat(sides->to, name, S_ISDIR(st.st_mode) ? AT_REMOVEDIR : 0) < 0)
            fail_errno(err, "cannot remove %s from the branch's " LABEL, name);
    }
    closedir(directory);
    return err->code ? -1 : 0;
}

/* What was not removed is as it should be. */
static bool is_there(void *context, const char *name)
{
    struct sides *sides = context;
    struct stat st;
    return look(sides, sides->to, name, &st) || sides->error;
}

int device_directory_copy(int from, int to, struct error *err)
{
    struct stat st;
    if (fstat(to, &st) < 0)
        return fail_errno(err, "cannot look at the branch's " LABEL);
    struct sides sides = { .from = from, .to = to, .device = st.st_dev };
    struct tree_copy copy = { .label = LABEL, .from = from, .to = to, .leave = is_there, .context = &sides };
    if (remove_others(&sides, err) < 0 || tree_copy(&copy, err) < 0)
        return -1;
    errno = sides.error;
    return sides.error ? fail_errno(err, "cannot compare the branch's " LABEL " with the source's") : 0;
}
