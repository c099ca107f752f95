/*
 * There is no way to look at a message without taking it. So the frozen source's queues are emptied and filled again in the same order at once, by a
 * process that does not die with this one. Nobody can notice: who waits for a message or for room is out of the wait queue while it stands still,
 * and asks again afterwards. Only a registration by mq_notify would, since it goes off when a message comes into an empty queue; its value cannot
 * be read either, so it is refused before anything stops.
 */
#include "posix_queues.h"
#include "apart.h"
#include "descriptors.h"
#include "ipc_namespaces.h"
#include "mounts.h"
#include "proc.h"
#include "shield.h"
#include "sysv.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define MAX_QUEUES 4096
#define MAX_BYTES (256u << 20)
#define STATUS_SIZE 256

static struct mqueue **queues;
static int queue_count;
static size_t bytes_read;

/* The file system of the queues of one IPC namespace. */
struct queue_system {
    const struct namespace *where;
    uint64_t device;
};

static struct queue_system *systems;
static int system_count;

static struct mqueue *find(uint64_t device, uint64_t inode)
{
    for (int i = 0; i < queue_count; i++)
        if (queues[i]->inode == inode && queues[i]->device == device)
            return queues[i];
    return NULL;
}

static const struct namespace *namespace_of(uint64_t device)
{
    for (int i = 0; i < system_count; i++)
        if (systems[i].device == device)
            return systems[i].where;
    return NULL;
}

static bool name_is_taken(const struct namespace *where, const char *name)
{
    for (int i = 0; i < queue_count; i++)
        if (queues[i]->where == where && strcmp(queues[i]->name, name) == 0)
            return true;
    return false;
}

bool mqueue_lies_in(const struct namespace *where)
{
    for (int i = 0; i < queue_count; i++)
        if (queues[i]->where == where)
            return true;
    return false;
}

/* ---- messages ---- */

struct exchange {
    int fd;
    struct mqueue *queue;
    struct error *err;
};

static int take_all(const struct exchange *exchange)
{
    struct mqueue *queue = exchange->queue;
    size_t room = (size_t)queue->attributes.mq_msgsize;
    AUTO_FREE char *buffer = must_alloc(room + 1);
    unsigned priority;
    ssize_t size;
    struct timespec now = { 0 };
    while ((size = syscall(SYS_mq_timedreceive, exchange->fd, buffer, room, &priority, &now)) >= 0) {
        struct mqueue_message message = { must_alloc((size_t)size + 1), (size_t)size, priority };
        memcpy(message.data, buffer, (size_t)size);
        queue->messages = must_grow(queue->messages, (size_t)(queue->message_count + 1) * sizeof message);
        queue->messages[queue->message_count++] = message;
    }
    return errno == EAGAIN ? 0 : fail_errno(exchange->err, "cannot read the message queue /%s", queue->name);
}

static int send_all(int fd, const struct mqueue *queue, struct error *err)
{
    struct timespec now = { 0 };
    for (int i = 0; i < queue->message_count; i++) {
        const struct mqueue_message *message = &queue->messages[i];
        if (syscall(SYS_mq_timedsend, fd, message->data, message->size, message->priority, &now) < 0)
            return fail_errno(err, "cannot fill the message queue /%s", queue->name);
    }
    return 0;
}

static int exchange_messages(void *argument)
{
    const struct exchange *exchange = argument;
    int taken = take_all(exchange);
    shield_kill_if_asked("queue");
    int sent = send_all(exchange->fd, exchange->queue, exchange->err);
    return taken < 0 || sent < 0;
}

/* ---- capture ---- */

/* "QSIZE:129 NOTIFY:2 SIGNO:0 NOTIFY_PID:8260", from mq_overview(7). */
static bool has_registration(int fd)
{
    char text[STATUS_SIZE] = "";
    if (pread(fd, text, sizeof text - 1, 0) < 0)
        return false;
    const char *pid = strstr(text, "NOTIFY_PID:");
    return pid && atoi(pid + strlen("NOTIFY_PID:")) != 0;
}

static int read_queue(int fd, struct mqueue *queue, struct error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || mq_getattr(fd, &queue->attributes) < 0)
        return fail_errno(err, "cannot look at the message queue /%s", queue->name);
    queue->mode = st.st_mode & 0777;
    queue->uid = st.st_uid;
    queue->gid = st.st_gid;
    if (queue->attributes.mq_curmsgs == 0)
        return 0;
    if (has_registration(fd))
        return fail(err, "unsupported", "a process waits to be notified of the message queue /%s (mq_notify); end it", queue->name);
    bytes_read += (size_t)queue->attributes.mq_curmsgs * (size_t)queue->attributes.mq_msgsize;
    if (bytes_read > MAX_BYTES)
        return fail(err, "limit", "the messages in POSIX message queues may take more than %u MiB; let their receivers take them", MAX_BYTES >> 20);
    struct exchange exchange = { fd, queue, err };
    return apart_run(exchange_messages, &exchange, err);
}

static struct mqueue *add(const struct namespace *where, const struct stat *st, const char *name, struct error *err)
{
    if (queue_count == MAX_QUEUES) {
        fail(err, "limit", "the workspace has more than %d POSIX message queues", MAX_QUEUES);
        return NULL;
    }
    struct mqueue *queue = must_alloc(sizeof *queue);
    queue->where = where;
    queue->device = st->st_dev;
    queue->inode = st->st_ino;
    queue->name = must_copy_string(name);
    queues = must_grow(queues, (size_t)(queue_count + 1) * sizeof *queues);
    queues[queue_count++] = queue;
    return queue;
}

/* The file system of the queues need not be mounted in the workspace. */
static int mount_here(struct error *err)
{
    AUTO_CLOSE int context = (int)syscall(SYS_fsopen, "mqueue", FSOPEN_CLOEXEC);
    if (context < 0 && errno == ENODEV)
        return fail(err, "internal", "this kernel has no POSIX message queues");
    if (context < 0 || syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return fail_errno(err, "cannot list the workspace's POSIX message queues");
    int mount = (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, 0);
    return mount < 0 ? fail_errno(err, "cannot list the workspace's POSIX message queues") : mount;
}

static int queue_mount = -1;

int mqueue_prepare(struct world *world, struct error *err)
{
    AUTO_CLOSE int home = -1;
    if (sysv_enter(world->ipc_ns, &home, err) < 0)
        return -1;
    queue_mount = mount_here(err);
    return sysv_leave(home, err) < 0 || queue_mount < 0 ? -1 : 0;
}

int mqueue_preflight(const struct process *process, struct error *err)
{
    const struct namespace *where = process->namespaces[NAMESPACE_IPC];
    AUTO_CLOSE int home = -1;
    struct stat st;
    if (!where || !where->nested || where->member != process)
        return 0;
    if (sysv_enter(where->local, &home, err) < 0)
        return -1;
    AUTO_CLOSE int mount = mount_here(err);
    if (mount >= 0 && fstat(mount, &st) == 0)
        mounts_note_harmless((uint64_t)major(st.st_dev) << 32 | minor(st.st_dev));
    return sysv_leave(home, err) < 0 || mount < 0 ? -1 : 0;
}

static int read_named(const struct namespace *where, int mount, const char *name, struct error *err)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(mount, name, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &st) < 0)
        return fail_errno(err, "cannot open the message queue /%s", name);
    struct mqueue *queue = add(where, &st, name, err);
    return queue ? read_queue(fd, queue, err) : -1;
}

static int read_system(const struct namespace *where, int mount, struct error *err)
{
    int listing = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);   /* a mount's own descriptor is O_PATH */
    DIR *directory = listing < 0 ? NULL : fdopendir(listing);
    struct stat st;
    if (!directory || fstat(dirfd(directory), &st) < 0)
        return fail_errno(err, "cannot list the workspace's POSIX message queues");
    systems = must_grow(systems, (size_t)(system_count + 1) * sizeof *systems);
    systems[system_count++] = (struct queue_system){ where, st.st_dev };
    struct dirent *entry;
    int status = 0;
    while (status == 0 && (entry = directory_next(directory, "the message queues of the source", err)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = read_named(where, mount, entry->d_name, err);
    closedir(directory);
    return status < 0 || err->code ? -1 : 0;
}

static int read_in(struct world *world, const struct namespace *where, struct error *err)
{
    (void)world;
    if (!where->nested)
        return read_system(where, queue_mount, err);
    AUTO_CLOSE int mount = mount_here(err);
    return mount < 0 ? -1 : read_system(where, mount, err);
}

int mqueue_read(struct world *world, struct error *err)
{
    return ipc_each(world, read_in, err);
}

static int open_again(const struct description *description, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", description->local);
    return open(path, flags | O_NONBLOCK | O_CLOEXEC);
}

struct mqueue *mqueue_of_description(const struct description *description, struct error *err)
{
    struct mqueue *queue = find(description->st.st_dev, description->st.st_ino);
    if (queue)
        return queue;
    const struct namespace *where = namespace_of(description->st.st_dev);
    if (!where) {
        fail(err, "unsupported", "%s is a message queue of an IPC namespace in which no process lives any more, which cannot be forked; close it",
             description_label(description));
        return NULL;
    }
    char name[NAME_MAX + 1];
    snprintf(name, sizeof name, "%s", description->link + 1);
    char *deleted = strstr(name, " (deleted)");
    if (deleted)
        *deleted = 0;
    if (!*name || name_is_taken(where, name))
        snprintf(name, sizeof name, "tclone-%lu", (unsigned long)description->st.st_ino);
    AUTO_CLOSE int fd = open_again(description, O_RDWR);
    if (fd < 0) {
        fail_errno(err, "%s: cannot open it again", description_label(description));
        return NULL;
    }
    queue = add(where, &description->st, name, err);
    if (!queue || read_queue(fd, queue, err) < 0)
        return NULL;
    queue->unlinked = true;
    return queue;
}

int mqueue_check_notification(const struct description *description, struct error *err)
{
    AUTO_CLOSE int fd = open_again(description, O_RDONLY);
    if (fd < 0 || !has_registration(fd))
        return 0;
    return fail(err, "unsupported", "%s waits to be notified of the message queue %s (fd %d, mq_notify); end it, or let it receive with a thread that waits",
                process_label(description->holder), description->link, description->holder_fd);
}

/* ---- in a branch ---- */

static int make_queue(const struct mqueue *queue, struct error *err)
{
    struct mq_attr attributes = queue->attributes;
    attributes.mq_flags = 0;
    if (sysv_act_as(queue->uid, queue->gid, err) < 0)
        return -1;
    AUTO_CLOSE int fd = (int)syscall(SYS_mq_open, queue->name, O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK | O_CLOEXEC, 0600, &attributes);
    int number = errno;
    if (sysv_act_as(0, 0, err) < 0)
        return -1;
    errno = number;
    if (fd < 0 && errno == EMFILE)
        return fail(err, "limit", "the POSIX message queues of user %u take more than RLIMIT_MSGQUEUE lets them; raise it for the engine", queue->uid);
    if (fd < 0 || fchmod(fd, queue->mode) < 0)
        return fail_errno(err, "cannot make the message queue /%s", queue->name);
    return send_all(fd, queue, err);
}

static int make_all(const struct namespace *where, struct error *err)
{
    /* Every user's queues are counted over the whole host. */
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    if (setrlimit(RLIMIT_MSGQUEUE, &limit) < 0 && getrlimit(RLIMIT_MSGQUEUE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_MSGQUEUE, &limit);
    }
    for (int i = 0; i < queue_count; i++)
        if (queues[i]->where == where && make_queue(queues[i], err) < 0)
            return -1;
    return 0;
}

int mqueue_make(struct branch *branch, const struct namespace *where, struct error *err)
{
    AUTO_CLOSE int home = -1;
    if (!mqueue_lies_in(where))
        return 0;
    if (sysv_enter(ipc_of_branch(branch, where), &home, err) < 0)
        return -1;
    mode_t mask = umask(0);
    int status = make_all(where, err);
    umask(mask);
    return sysv_leave(home, err) < 0 ? -1 : status;
}
