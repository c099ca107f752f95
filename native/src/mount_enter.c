#include "mount_enter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif

#define CACHED_TRIES 100

/* The way back; -1 until the first visit. */
static int own_mnt_ns = -1;

/* Namespaces of mounts are entered by tasks that share root and working directory with nobody, so this thread leaves its siblings for good. */
static int prepare(struct error *err)
{
    if (own_mnt_ns >= 0)
        return 0;
    int own = open("/proc/thread-self/ns/mnt", O_RDONLY | O_CLOEXEC);
    if (own < 0 || unshare(CLONE_FS) < 0)
        return fail_errno(err, "cannot prepare to enter mount namespaces");
    own_mnt_ns = own;
    return 0;
}

int mount_enter(int mnt_ns, int (*work)(void *context, struct error *err), void *context, struct error *err)
{
    if (prepare(err) < 0)
        return -1;
    if (unshare(CLONE_FS) < 0 || setns(mnt_ns, CLONE_NEWNS) < 0)   /* a helper that was joined may hold root and directory a moment longer */
        return fail_errno(err, "cannot enter a mount namespace of the source");
    int result = work(context, err);
    if (setns(own_mnt_ns, CLONE_NEWNS) < 0)     /* every path would mean something else from now on */
        end_at_once("cannot return from a mount namespace: %s", strerror(errno));
    return result;
}

static int make_copy(int user_ns)
{
    if (user_ns >= 0 && setns(user_ns, CLONE_NEWUSER) < 0)
        return -1;
    return unshare(CLONE_NEWNS) < 0 ? -1 : mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
}

/* The copy is locked altogether if it has another owner than the namespace itself; and nobody comes back from a user namespace: so a process goes. */
int mount_in_copy(int user_ns, int (*work)(void *context, struct error *err), void *context)
{
    int ends[2], result = -1;
    if (pipe2(ends, O_CLOEXEC) < 0)
        return -1;
    pid_t helper = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (helper == 0) {
        struct error ignored = { 0 };
        int got = make_copy(user_ns) < 0 ? -1 : work(context, &ignored);
        _exit(write(ends[1], &got, sizeof got) == sizeof got ? 0 : 1);
    }
    int status;
    if (helper > 0 && waitpid(helper, &status, 0) == helper && WIFEXITED(status) && WEXITSTATUS(status) == 0
        && read(ends[0], &result, sizeof result) != sizeof result)
        result = -1;
    close(ends[0]);
    close(ends[1]);
    return result;
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
    /* Below proc the kernel always asks the file system, which answers by itself; that no FUSE server is on the way was checked before. */
    how.resolve &= ~(__u64)RESOLVE_CACHED;
    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
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
    int set = (int)syscall(SYS_mount_setattr, copy, "", AT_EMPTY_PATH, &quiet, sizeof quiet);
    if (set < 0 && errno == EPERM) {    /* its access times are locked, having come from a namespace with more rights: they are then recorded */
        quiet = (struct mount_attr){ .attr_set = MOUNT_ATTR_RDONLY };
        set = (int)syscall(SYS_mount_setattr, copy, "", AT_EMPTY_PATH, &quiet, sizeof quiet);
    }
    if (set < 0) {
        fail_errno(err, "cannot set the copy of the mount %s up", path);
        close(copy);
        return -1;
    }
    return copy;
}
