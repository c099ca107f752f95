/* SysV shared memory: segments keep their ids (shm_next_id), keys, owners and removal marks. */
#include "sysv.h"
#include "huge_pages.h"
#include "ipc_namespaces.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SHM_STAT_ANY
#define SHM_STAT_ANY 15
#endif
#define SHM_DEST_FLAG 01000
#define SHM_LOCKED_FLAG 02000

int sysv_enter(int ns, int *home, struct error *err)
{
    *home = open("/proc/thread-self/ns/ipc", O_RDONLY | O_CLOEXEC);
    if (*home < 0)
        return fail_errno(err, "cannot open this thread's IPC namespace");
    if (setns(ns, CLONE_NEWIPC) < 0)
        return fail_errno(err, "cannot enter an IPC namespace");
    return 0;
}

int sysv_leave(int home, struct error *err)
{
    if (setns(home, CLONE_NEWIPC) < 0)
        return fail_errno(err, "cannot return to the host's IPC namespace");
    return 0;
}

int sysv_choose_id(const char *file, int id, struct error *err)
{
    char path[64], text[24];
    snprintf(path, sizeof path, "/proc/sys/kernel/%s", file);
    snprintf(text, sizeof text, "%d", id);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        return fail_errno(err, "cannot choose the id %d of a System V object", id);
    return 0;
}

/* The raw calls change this thread alone; going back to root brings the capabilities back. */
int sysv_act_as(uid_t uid, gid_t gid, struct error *err)
{
    bool as_root = uid == 0;
    if (as_root && syscall(SYS_setresuid, -1, uid, -1) < 0)
        return fail_errno(err, "cannot become root again");
    if (syscall(SYS_setresgid, -1, gid, -1) < 0 || (!as_root && syscall(SYS_setresuid, -1, uid, -1) < 0))
        return fail_errno(err, "cannot make a System V object as user %u", uid);
    return 0;
}

struct sysv_identity sysv_identity(const struct namespace *where, int id, const struct ipc_perm *perm)
{
    return (struct sysv_identity){ .where = where, .id = id, .key = perm->__key, .mode = perm->mode & 0777, .uid = perm->uid, .gid = perm->gid,
                                   .creator_uid = perm->cuid, .creator_gid = perm->cgid };
}

/*
 * A segment is a file without a name, that can be opened where it is mapped. To read it there instead would give memory to what nobody has touched yet.
 * Its mapping ends with a whole page of whatever size it has.
 */
static int open_segment(int id, uint64_t size, int flags)
{
    static const uint64_t pages[] = { 4096, 1ul << 21, 1ul << 30 };
    char path[96];
    int fd = -1;
    char *at = shmat(id, NULL, flags);
    if (at == (void *)-1)
        return -1;
    for (size_t i = 0; i < sizeof pages / sizeof *pages && fd < 0; i++) {
        uint64_t end = (uint64_t)at + ((size + pages[i] - 1) & ~(pages[i] - 1));
        snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (unsigned long)at, (unsigned long)end);
        fd = open(path, (flags & SHM_RDONLY ? O_RDONLY : O_RDWR) | O_CLOEXEC);
    }
    int number = errno;
    shmdt(at);
    errno = number;
    return fd;
}

static int read_segments(struct world *world, const struct namespace *where, struct error *err)
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
        object->ipc = where;
        object->inode = (uint64_t)id;
        object->size = ds.shm_segsz;
        object->key = ds.shm_perm.__key;
        object->mode = ds.shm_perm.mode & 0777;
        object->marked_removed = ds.shm_perm.mode & SHM_DEST_FLAG;
        object->locked = ds.shm_perm.mode & SHM_LOCKED_FLAG;
        object->uid = ds.shm_perm.uid;
        object->gid = ds.shm_perm.gid;
        object->creator_uid = ds.shm_perm.cuid;
        object->creator_gid = ds.shm_perm.cgid;
        object->source = open_segment(id, object->size, SHM_RDONLY);
        if (object->source < 0)
            return fail_errno(err, "cannot read the SysV segment %d", id);
        object->huge_shift = huge_page_shift(object->source);
        char name[24];
        snprintf(name, sizeof name, "SysV %d", id);
        object->name = must_copy_string(name);
    }
    return 0;
}

static int read_objects(struct world *world, const struct namespace *where, struct error *err)
{
    return read_segments(world, where, err) < 0 ? -1 : sysv_queues_read(where, err);
}

int sysv_read(struct world *world, struct error *err)
{
    return ipc_each(world, read_objects, err);
}

static int make_segment(struct branch *branch, const struct shared_object *object, struct error *err)
{
    int wanted = (int)object->inode;
    if (sysv_choose_id("shm_next_id", wanted, err) < 0 || sysv_act_as(object->creator_uid, object->creator_gid, err) < 0)
        return -1;
    int huge = object->huge_shift ? SHM_HUGETLB | (int)HUGE_SIZE_FLAG(object->huge_shift) : 0;
    int id = shmget(object->key, object->size, IPC_CREAT | IPC_EXCL | huge | (int)(object->mode & 0777)), number = errno;
    if (sysv_act_as(0, 0, err) < 0)
        return -1;
    errno = number;
    if (id != wanted)
        return fail_errno(err, "the SysV segment %d got the id %d", wanted, id);
    struct shmid_ds ds;
    if (shmctl(id, IPC_STAT, &ds) == 0) {
        ds.shm_perm.uid = object->uid;
        ds.shm_perm.gid = object->gid;
        if (shmctl(id, IPC_SET, &ds) < 0)
            return fail_errno(err, "cannot set the owner of SysV segment %d", id);
    }
    branch->objects[object->index] = open_segment(id, object->size, 0);
    if (branch->objects[object->index] < 0)
        return fail_errno(err, "cannot open the SysV segment %d of the branch", id);
    return 0;
}

static bool is_segment_of(const struct shared_object *object, const struct namespace *where)
{
    return object->kind == SHARED_SYSV && object->ipc == where;
}

static int each_segment(struct world *world, struct branch *branch, const struct namespace *where,
                        int (*work)(struct branch *, const struct shared_object *, struct error *), struct error *err)
{
    for (int i = 0; i < world->shared->count; i++)
        if (is_segment_of(world->shared->list[i], where) && work(branch, world->shared->list[i], err) < 0)
            return -1;
    return 0;
}

static bool has_segments(const struct world *world, const struct namespace *where)
{
    for (int i = 0; world->shared && i < world->shared->count; i++)
        if (is_segment_of(world->shared->list[i], where))
            return true;
    return false;
}

bool sysv_lies_in(const struct world *world, const struct namespace *where)
{
    return has_segments(world, where) || sysv_queue_count(where) > 0 || sysv_semaphore_count(where) > 0;
}

int sysv_make(struct world *world, struct branch *branch, const struct namespace *where, struct error *err)
{
    AUTO_CLOSE int home = -1;
    if (!sysv_lies_in(world, where))
        return 0;
    if (sysv_enter(ipc_of_branch(branch, where), &home, err) < 0)
        return -1;
    int status = each_segment(world, branch, where, make_segment, err);
    if (status == 0)
        status = sysv_queues_make(where, err);
    if (status == 0)
        status = sysv_semaphores_make(where, err);
    return sysv_leave(home, err) < 0 ? -1 : status;
}

static int finish_segment(struct branch *branch, const struct shared_object *object, struct error *err)
{
    (void)branch;
    if (object->locked && shmctl((int)object->inode, SHM_LOCK, NULL) < 0)
        return fail_errno(err, "cannot lock the SysV segment %d of the branch", (int)object->inode);
    if (object->marked_removed && shmctl((int)object->inode, IPC_RMID, NULL) < 0)
        return fail_errno(err, "cannot mark the SysV segment %d removed", (int)object->inode);
    return 0;
}

static int finish_in(struct world *world, struct branch *branch, const struct namespace *where, struct error *err)
{
    AUTO_CLOSE int home = -1;
    if (!has_segments(world, where))
        return 0;
    if (sysv_enter(ipc_of_branch(branch, where), &home, err) < 0)
        return -1;
    int status = each_segment(world, branch, where, finish_segment, err);
    return sysv_leave(home, err) < 0 ? -1 : status;
}

int sysv_finish(struct world *world, struct branch *branch, struct error *err)
{
    for (int i = 0; i < world->namespaces->count; i++)
        if (finish_in(world, branch, world->namespaces->list[i], err) < 0)
            return -1;
    return 0;
}
