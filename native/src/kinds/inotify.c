/*
 * inotify. /proc names a watched inode by its file handle. On overlayfs that handle cannot be opened, but it wraps the handle of the real
 * inode (struct ovl_fb in fs/overlayfs/overlayfs.h), which can be opened on the file system below; its path there ends in the path that the
 * workspace sees. Events not read yet are dropped; whatever changes while the branch is made happens before its watches exist.
 */
#include "../descriptors.h"
#include "../files.h"
#include "../parts/parts.h"
#include "../plan.h"
#include "../proc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/btrfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FDINFO_LIMIT (64u << 20)
#define MAX_WATCH 100000
#define OVERLAY_HANDLE 0xf8     /* OVL_FILEID_V1 */
#define OVERLAY_MAGIC 0xfb
#define OVERLAY_HEADER 24       /* 3 bytes of padding, version, magic, length, flags, type, uuid[16] */
#define DRAIN_BYTES (64u << 10)
#define MAX_QUEUED_EVENTS 131072    /* sysctl; with more than these IN_Q_OVERFLOW would be too expensive to bring about */

#define UUID_SIZE 16

struct handle {
    int type;
    unsigned size;
    unsigned char bytes[MAX_HANDLE_SZ];
    unsigned char uuid[UUID_SIZE];      /* of the file system; zeros = not told */
};

struct watch {
    int number;
    uint32_t mask;
    uint64_t inode;
    unsigned device;
    char *path;                 /* NULL: removed, so that nothing can be watched again */
};

static bool any_unread;

struct inotify_set {
    struct watch *watches;
    int count;
    bool unread;                /* events wait to be read */
};

static bool match(const struct description *description)
{
    return strcmp(description->link, "anon_inode:inotify") == 0;
}

/* ---- from a handle to a path ---- */

static int parse_hex(const char *text, unsigned char *bytes, unsigned limit)
{
    unsigned count = 0, value;
    while (count < limit && sscanf(text + count * 2, "%2x", &value) == 1)
        bytes[count++] = (unsigned char)value;
    return (int)count;
}

static int parse_handle(const char *line, struct handle *handle)
{
    const char *text = strstr(line, "f_handle:");
    if (!text || sscanf(strstr(line, "fhandle-bytes:"), "fhandle-bytes:%x fhandle-type:%x", &handle->size, (unsigned *)&handle->type) != 2)
        return -1;
    if (handle->size > sizeof handle->bytes)
        return -1;
    return parse_hex(text + strlen("f_handle:"), handle->bytes, handle->size) == (int)handle->size ? 0 : -1;
}

/* The handle of the real inode inside that of an overlay's. */
static int unwrap(const struct handle *overlay, struct handle *real)
{
    const unsigned char *fb = overlay->bytes + 3;
    if (overlay->type != OVERLAY_HANDLE || overlay->size < OVERLAY_HEADER || fb[1] != OVERLAY_MAGIC)
        return -1;
    unsigned length = fb[2];
    if (length < OVERLAY_HEADER - 3 || length + 3 > overlay->size)
        return -1;
    real->type = fb[4];
    memcpy(real->uuid, fb + 5, UUID_SIZE);
    real->size = length - (OVERLAY_HEADER - 3);
    memcpy(real->bytes, overlay->bytes + OVERLAY_HEADER, real->size);
    return 0;
}

/* Where a handle leads, if anything still has a name there. */
static char *open_handle(int mount, const struct handle *handle)
{
    struct error ignored = { 0 };
    union { struct file_handle head; char room[sizeof(struct file_handle) + MAX_HANDLE_SZ]; } wanted;
    wanted.head.handle_bytes = handle->size;
    wanted.head.handle_type = handle->type;
    memcpy(wanted.head.f_handle, handle->bytes, handle->size);
    AUTO_CLOSE int fd = open_by_handle_at(mount, &wanted.head, O_PATH | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || st.st_nlink == 0)
        return NULL;
    return proc_link(&ignored, "/proc/self/fd/%d", fd);
}

/* The longest tail of a path below the pool that names this inode in the workspace. */
static char *path_in_workspace(const struct world *world, const char *host_path, uint64_t inode)
{
    for (const char *tail = host_path; tail && *tail; tail = strchr(tail + 1, '/'))
        if (files_path_is(world, tail, inode))
            return must_copy_string(tail);
    return files_path_is(world, "/", inode) ? must_copy_string("/") : NULL;
}

/* The host's mounts that layers can lie on. */
static struct layer_mount {
    int fd;
    unsigned char uuid[UUID_SIZE];      /* zeros = unknown */
} *layer_mounts;
static int layer_mount_count;

static void add_layer_mount(int fd)
{
    struct layer_mount mount = { .fd = fd };
    struct btrfs_ioctl_fs_info_args info = { 0 };
    if (ioctl(fd, BTRFS_IOC_FS_INFO, &info) == 0)
        memcpy(mount.uuid, info.fsid, UUID_SIZE);
    layer_mounts = must_grow(layer_mounts, (size_t)(layer_mount_count + 1) * sizeof mount);
    layer_mounts[layer_mount_count++] = mount;
}

/* On another file system the same handle may lead to another file. */
static bool may_be_on(const struct layer_mount *mount, const struct handle *handle)
{
    static const unsigned char unknown[UUID_SIZE];
    return memcmp(mount->uuid, handle->uuid, UUID_SIZE) == 0 || memcmp(handle->uuid, unknown, UUID_SIZE) == 0
        || memcmp(mount->uuid, unknown, UUID_SIZE) == 0;
}

static int find_layer_mounts(struct error *err)
{
    AUTO_FREE char *text = proc_read(err, 16 << 20, NULL, "/proc/self/mountinfo");
    if (!text)
        return -1;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char *separator = strstr(line, " - ");
        char point[PATH_MAX];
        if (!separator || sscanf(line, "%*d %*d %*s %*s %4095s", point) != 1)
            continue;
        if (strncmp(separator, " - btrfs ", 9) && strncmp(separator, " - ext4 ", 8) && strncmp(separator, " - xfs ", 7))
            continue;
        int fd = open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            continue;
        add_layer_mount(fd);
    }
    return 0;
}

/* *hidden: the file exists, but not under the path that it has in its layer. */
static char *path_on_overlay(const struct world *world, const struct watch *watch, const struct handle *overlay, bool *hidden, struct error *err)
{
    struct handle real;
    if (unwrap(overlay, &real) < 0)
        return NULL;
    if (!layer_mounts && find_layer_mounts(err) < 0)
        return NULL;
    for (int i = 0; i < layer_mount_count; i++) {
        if (!may_be_on(&layer_mounts[i], &real))
            continue;
        AUTO_FREE char *host = open_handle(layer_mounts[i].fd, &real);
        char *path = host ? path_in_workspace(world, host, watch->inode) : NULL;
        if (path)
            return path;
        *hidden |= host != NULL;
    }
    return NULL;
}

/* A file system that is mounted in the workspace itself (tmpfs on /dev/shm, devpts): open the handle there. */
static char *path_on_mount(const struct world *world, const struct watch *watch, const struct handle *handle, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, 16 << 20, NULL, "/proc/%d/mountinfo", world->source_pid);
    if (!text)
        return NULL;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned major_number, minor_number;
        char point[PATH_MAX], path[PATH_MAX + 64];
        if (sscanf(line, "%*d %*d %u:%u %*s %4095s", &major_number, &minor_number, point) != 3)
            continue;
        if ((major_number << 20 | minor_number) != watch->device)
            continue;
        if (files_path_is(world, point, watch->inode))
            return must_copy_string(point);
        snprintf(path, sizeof path, "/proc/%d/root%s", world->source_pid, point);
        AUTO_CLOSE int mount = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        char *found = mount < 0 ? NULL : open_handle(mount, handle);
        if (found && files_path_is(world, found, watch->inode))
            return found;
        free(found);
    }
    return NULL;
}

/*
 * File systems without handles (devpts, parts of /proc), directories that the overlay keeps under another name: look at what processes stand in
 * or have open. What is found nowhere has lost its last name: such a watch has nothing to report any more but its own end.
 */
static char *path_of_known(const struct world *world, const struct watch *watch)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        if (process->cwd && files_path_is(world, process->cwd, watch->inode))
            return must_copy_string(process->cwd);
    }
    for (int i = 0; i < world->description_count; i++) {
        const struct description *description = world->descriptions[i];
        if (description->st.st_ino == watch->inode && description->link[0] == '/' && files_path_is(world, description->link, watch->inode))
            return must_copy_string(description->link);
    }
    return NULL;
}

/* ---- capture ---- */

static int by_wd(const void *left, const void *right)
{
    return ((const struct watch *)left)->number - ((const struct watch *)right)->number;
}

static int take_watch(const struct world *world, const struct description *description, const char *line, struct error *err)
{
    struct inotify_set *set = description->data;
    struct watch watch = { 0 };
    struct handle handle = { 0 };
    unsigned long inode;
    bool hidden = false;
    if (sscanf(line, "inotify wd:%x ino:%lx sdev:%x mask:%x", (unsigned *)&watch.number, &inode, &watch.device, &watch.mask) != 4)
        return fail(err, "internal", "%s: a watch of it cannot be read: %.80s", description_label(description), line);
    if (watch.number > MAX_WATCH)
        return fail(err, "limit", "%s has handed out %d watch numbers, more than %d; restart the program that uses it",
                    description_label(description), watch.number, MAX_WATCH);
    watch.inode = inode;
    if (parse_handle(line, &handle) == 0)
        watch.path = handle.type == OVERLAY_HANDLE ? path_on_overlay(world, &watch, &handle, &hidden, err)
                                                  : path_on_mount(world, &watch, &handle, err);
    if (err->code)
        return -1;
    if (!watch.path)
        watch.path = path_of_known(world, &watch);
    if (!watch.path && hidden)
        return fail(err, "unsupported", "%s watches inode %lu, whose path cannot be found (its directory was renamed); end the program or let it "
                    "watch again", description_label(description), inode);
    set->watches = must_grow(set->watches, (size_t)(set->count + 1) * sizeof watch);
    set->watches[set->count++] = watch;
    return 0;
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct inotify_set *set = description->data = must_alloc(sizeof *set);
    int bytes = 0;
    if (ioctl(description->local, FIONREAD, &bytes) == 0 && bytes > 0) {
        set->unread = true;
        any_unread = true;
    }
    AUTO_FREE char *text = proc_read(err, FDINFO_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
    if (!text)
        return -1;
    for (char *line = strstr(text, "inotify wd:"), *next; line; line = next) {
        next = strstr(line + 1, "inotify wd:");
        if (next)
            next[-1] = 0;
        if (take_watch(world, description, line, err) < 0)
            return -1;
    }
    if (set->count)
        qsort(set->watches, (size_t)set->count, sizeof *set->watches, by_wd);
    return 0;
}

/* ---- emit ---- */

/* Numbers are handed out one after the other, so a gap is crossed by watches that are taken and dropped at once. */
static int emit_watch(struct batch *batch, uint64_t slot, const struct watch *watch, int next, const char *what)
{
    uint64_t path = plan_string(batch->plan, watch->path);
    for (; next < watch->number; next++) {
        EMIT(batch, what, SYS_inotify_add_watch, slot, path, IN_DELETE_SELF | IN_DONT_FOLLOW);
        EMIT(batch, what, SYS_inotify_rm_watch, slot, (uint64_t)next);
    }
    EMIT(batch, what, SYS_inotify_add_watch, slot, path, watch->mask | IN_DONT_FOLLOW);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), OP_EXPECT, cell, (uint64_t)watch->number);
    return watch->number + 1;
}

/* Read what so many events without names take. */
static void emit_drain(struct batch *batch, uint64_t slot, int events, const char *what)
{
    uint64_t room = events ? plan_reserve(batch->plan, DRAIN_BYTES) : 0;
    const int at_once = (int)(DRAIN_BYTES / sizeof(struct inotify_event));
    for (; events > 0; events -= at_once)
        EMIT_FLAGS(batch, what, OP_MAY_FAIL, SYS_read, slot, room, (uint64_t)(events < at_once ? events : at_once) * sizeof(struct inotify_event));
}

static int queue_limit(void)
{
    struct error ignored = { 0 };
    AUTO_FREE char *text = proc_read(&ignored, 64, NULL, "/proc/sys/fs/inotify/max_queued_events");
    return text ? atoi(text) : 0;
}

/*
 * Fill the queue with reads and writes of a device, by turns since an event equal to the last one is not queued; one too many, and IN_Q_OVERFLOW comes
 * behind them. Then they are read away. 16384 system calls take 10 to 20 ms, so that comes after the source's pause.
 */
static void emit_overflow(struct batch *batch, uint64_t slot, const char *what)
{
    struct plan *plan = batch->plan;
    int limit = queue_limit();
    if (limit <= 0 || limit > MAX_QUEUED_EVENTS)
        return;
    uint64_t zero = plan_string(plan, "/dev/zero"), byte = plan_reserve(plan, 1);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, zero, O_RDWR | O_CLOEXEC);
    uint64_t device = emit_result_cell(batch);
    EMIT(batch, what, SYS_inotify_add_watch, slot, zero, IN_ACCESS | IN_MODIFY | IN_MASK_CREATE);
    uint64_t watch = emit_result_cell(batch);
    for (int i = 0; i <= limit; i++)
        EMIT_FLAGS(batch, what, OP_LOAD(0), i % 2 ? SYS_pread64 : SYS_pwrite64, device, byte, 1);
    EMIT_FLAGS(batch, what, OP_LOAD(1), SYS_inotify_rm_watch, slot, watch);     /* its IN_IGNORED is lost in the overflow */
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, device);
    emit_drain(batch, slot, limit, what);
}

/* By a process that has changed its root the device cannot be opened. */
static bool holder_can_overflow(const struct description *description)
{
    const struct process *holder = description->holder;
    return holder && holder->root && strcmp(holder->root, "/") == 0;
}

static int overflow_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    if (!any_unread || thread != &process->threads[0])
        return 0;
    for (int i = 0; i < process->fd_count; i++) {
        const struct description *description = process->fds[i].description;
        if (match(description) && description->holder == process && description->holder_fd == process->fds[i].fd
            && ((const struct inotify_set *)description->data)->unread && holder_can_overflow(description))
            emit_overflow(batch, (uint64_t)description->holder_fd, description_label(description));
    }
    return 0;
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    const struct inotify_set *set = description->data;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    uint64_t slot = SLOT(plan, description);
    if (stage == STAGE_MAKE) {
        EMIT(batch, what, SYS_inotify_init1, IN_NONBLOCK);
        emit_to_slot(batch, description, what);
    }
    if (stage != STAGE_WATCH)
        return 0;
    int next = 1, dropped = 0;
    for (int i = 0; i < set->count; i++) {
        if (!set->watches[i].path)
            continue;
        int before = next;
        next = emit_watch(batch, slot, &set->watches[i], next, what);
        dropped += next - before - 1;
    }
    emit_drain(batch, slot, dropped, what);     /* each dropped watch left an IN_IGNORED event */
    if (set->unread && !holder_can_overflow(description))
        emit_overflow(batch, slot, what);
    if (!(description->flags & O_NONBLOCK))
        EMIT(batch, what, SYS_fcntl, slot, F_SETFL, 0);
    emit_status_flags(batch, description, what);
    return 0;
}

const struct part part_inotify_overflow = { .name = "lost inotify events", .emit = overflow_emit };

const struct fd_kind kind_inotify = { .name = "inotify", .match = match, .capture = capture, .emit = emit };
