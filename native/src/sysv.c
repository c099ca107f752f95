/* SysV shared memory: segments keep their ids (shm_next_id), keys, owners and removal marks. */
#include "sysv.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <unistd.h>

#ifndef SHM_STAT_ANY
#define SHM_STAT_ANY 15
#endif
#define SHM_DEST_FLAG 01000

static int enter_ipc(int ns, struct error *err)
{
    if (setns(ns, CLONE_NEWIPC) < 0)
        return fail_errno(err, "cannot enter an IPC namespace");
    return 0;
}

static int own_ipc(struct error *err)
{
    int fd = open("/proc/thread-self/ns/ipc", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(err, "cannot open this thread's IPC namespace");
    return fd;
}

static int read_segments(struct world *world, struct error *err)
{
    struct shm_info info;
    int highest = shmctl(0, SHM_INFO, (struct shmid_ds *)&info);
    for (int i = 0; i <= highest; i++) {
        struct shmid_ds ds;
        int id = shmctl(i, SHM_STAT_ANY, &ds);
        if (id < 0)
            continue;
        struct shared_object *object = shared_add(world);
        object->kind = SHARED_SYSV;
        object->inode = (uint64_t)id;
        object->size = ds.shm_segsz;
        object->key = ds.shm_perm.__key;
        object->mode = ds.shm_perm.mode & 0777;
        object->marked_removed = ds.shm_perm.mode & SHM_DEST_FLAG;
        object->uid = ds.shm_perm.uid;
        object->gid = ds.shm_perm.gid;
        object->source_map = shmat(id, NULL, SHM_RDONLY);
        if (object->source_map == (void *)-1)
            return fail_errno(err, "cannot attach the SysV segment %d", id);
    }
    return 0;
}

int sysv_read(struct world *world, struct error *err)
{
    AUTO_CLOSE int home = own_ipc(err);
    if (home < 0 || enter_ipc(world->ipc_ns, err) < 0)
        return -1;
    int status = read_segments(world, err);
    if (setns(home, CLONE_NEWIPC) < 0)
        return fail_errno(err, "cannot return to the host's IPC namespace");
    return status;
}

static int write_text(const char *path, const char *text)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
}

static int make_segment(struct branch *branch, const struct shared_object *object, struct error *err)
{
    char id_text[24];
    snprintf(id_text, sizeof id_text, "%d", (int)object->inode);
    if (write_text("/proc/sys/kernel/shm_next_id", id_text) < 0)
        return fail_errno(err, "cannot choose the id of SysV segment %s", id_text);
    int id = shmget(object->key, object->size, IPC_CREAT | IPC_EXCL | (int)(object->mode & 0777));
    if (id != (int)object->inode)
        return fail_errno(err, "the SysV segment %s got the id %d", id_text, id);
    struct shmid_ds ds;
    if (shmctl(id, IPC_STAT, &ds) == 0) {
        ds.shm_perm.uid = object->uid;
        ds.shm_perm.gid = object->gid;
        if (shmctl(id, IPC_SET, &ds) < 0)
            return fail_errno(err, "cannot set the owner of SysV segment %s", id_text);
    }
    branch->attached[object->index] = shmat(id, NULL, 0);
    if (branch->attached[object->index] == (void *)-1)
        return fail_errno(err, "cannot attach the SysV segment %s of the branch", id_text);
    return 0;
}

static int in_branch_ipc(struct world *world, struct branch *branch, int (*work)(struct branch *, const struct shared_object *, struct error *),
                         struct error *err)
{
    bool any = false;
    for (int i = 0; i < shared_objects(world)->count; i++)
        any |= world->shared->list[i]->kind == SHARED_SYSV;
    if (!any)
        return 0;
    AUTO_CLOSE int home = own_ipc(err);
    if (home < 0 || enter_ipc(branch->ipc_ns, err) < 0)
        return -1;
    int status = 0;
    for (int i = 0; i < world->shared->count && status == 0; i++)
        if (world->shared->list[i]->kind == SHARED_SYSV)
            status = work(branch, world->shared->list[i], err);
    if (setns(home, CLONE_NEWIPC) < 0)
        return fail_errno(err, "cannot return to the host's IPC namespace");
    return status;
}

int sysv_make(struct world *world, struct branch *branch, struct error *err)
{
    return in_branch_ipc(world, branch, make_segment, err);
}

int64_t sysv_fill(const struct shared_object *object, char *to)
{
    /* Pages of zeroes are left as holes: a display buffer is mostly untouched. */
    static const char zero[4096];
    int64_t copied = 0;
    for (uint64_t at = 0; at < object->size; at += sizeof zero) {
        size_t length = object->size - at < sizeof zero ? (size_t)(object->size - at) : sizeof zero;
        if (memcmp(object->source_map + at, zero, length) == 0)
            continue;
        memcpy(to + at, object->source_map + at, length);
        copied += (int64_t)length;
    }
    return copied;
}

static int remove_segment(struct branch *branch, const struct shared_object *object, struct error *err)
{
    /* The branch's processes have it attached by now; our own mapping only served to fill it. */
    shmdt(branch->attached[object->index]);
    branch->attached[object->index] = NULL;
    if (object->marked_removed && shmctl((int)object->inode, IPC_RMID, NULL) < 0)
        return fail_errno(err, "cannot mark the SysV segment %d removed", (int)object->inode);
    return 0;
}

int sysv_finish(struct world *world, struct branch *branch, struct error *err)
{
    return in_branch_ipc(world, branch, remove_segment, err);
}
