#include "mount_enter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif

#define CACHED_TRIES 100

struct visit {
    int mnt_ns;
    int (*work)(void *context, struct error *err);
    void *context;
    struct error err;
    int result;
};

static void *enter(void *argument)
{
    struct visit *visit = argument;
    /* Namespaces of mounts are entered by tasks that share root and working directory with nobody. */
    if (unshare(CLONE_FS) < 0 || setns(visit->mnt_ns, CLONE_NEWNS) < 0)
        visit->result = fail_errno(&visit->err, "cannot enter a mount namespace of the source");
    else
        visit->result = visit->work(visit->context, &visit->err);
    return NULL;
}

int mount_enter(int mnt_ns, int (*work)(void *context, struct error *err), void *context, struct error *err)
{
    struct visit visit = { .mnt_ns = mnt_ns, .work = work, .context = context };
    pthread_t thread;
    int number = pthread_create(&thread, NULL, enter, &visit);
    if (number) {
        errno = number;
        return fail_errno(err, "cannot start a thread");
    }
    pthread_join(thread, NULL);
    if (visit.result < 0)
        *err = visit.err;
    return visit.result;
}

int mount_open_point(const char *path)
{
    struct open_how how = { .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_CACHED };
    /* A rename anywhere on the machine at the wrong moment is answered by EAGAIN, too. */
    for (int tries = 0; tries < CACHED_TRIES; tries++) {
        int place = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
        if (place >= 0 || errno != EAGAIN)
            return place;
    }
    return -1;
}

int mount_copy(const char *path, struct error *err)
{
    AUTO_CLOSE int place = mount_open_point(path);
    if (place < 0)
        return fail_errno(err, "cannot open the mount %s of the source", path);
    int copy = (int)syscall(SYS_open_tree, place, "", OPEN_TREE_CLONE | O_CLOEXEC | AT_EMPTY_PATH);
    if (copy < 0 && errno == EINVAL) {  /* unbindable: then it is read where it is */
        copy = place;
        place = -1;
        return copy;
    }
    if (copy < 0)
        return fail_errno(err, "cannot copy the mount %s of the source", path);
    struct mount_attr quiet = { .attr_set = MOUNT_ATTR_NOATIME | MOUNT_ATTR_RDONLY, .attr_clr = MOUNT_ATTR__ATIME };
    if (syscall(SYS_mount_setattr, copy, "", AT_EMPTY_PATH, &quiet, sizeof quiet) < 0) {
        fail_errno(err, "cannot set the copy of the mount %s up", path);
        close(copy);
        return -1;
    }
    return copy;
}
