/*
 * On overlayfs a file handle cannot be opened, but it wraps the handle of the real inode (struct ovl_fb in fs/overlayfs/overlayfs.h), which can be
 * opened on the file system below; its path there ends in the path that the workspace sees.
 */
#include "handle.h"
#include "../doubt.h"
#include "../files.h"
#include "../mounts.h"
#include "../proc.h"

#include <linux/btrfs.h>
#include <linux/openat2.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define OVERLAY_HANDLE 0xf8     /* OVL_FILEID_V1 */
#define OVERLAY_MAGIC 0xfb
#define OVERLAY_HEADER 24       /* 3 bytes of padding, version, magic, length, flags, type, uuid[16] */

bool handle_is_of_overlay(const struct handle *handle)
{
    return handle->type == OVERLAY_HANDLE;
}

static int parse_hex(const char *text, unsigned char *bytes, unsigned limit)
{
    unsigned count = 0, value;
    while (count < limit && sscanf(text + count * 2, "%2x", &value) == 1)
        bytes[count++] = (unsigned char)value;
    return (int)count;
}

int handle_parse(const char *line, struct handle *handle)
{
    const char *text = strstr(line, "f_handle:"), *sizes = strstr(line, "fhandle-bytes:");
    if (!text || !sizes || sscanf(sizes, "fhandle-bytes:%x fhandle-type:%x", &handle->size, (unsigned *)&handle->type) != 2)
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
#define HAS_NO_SUCH_HANDLE ANSWERS(ESTALE, ENOENT, EOPNOTSUPP, EINVAL, EACCES, ENOTDIR, EOVERFLOW)
static char *open_handle(int mount, const struct handle *handle)
{
    struct error err = { 0 };
    union { struct file_handle head; char room[sizeof(struct file_handle) + MAX_HANDLE_SZ]; } wanted;
    wanted.head.handle_bytes = handle->size;
    wanted.head.handle_type = handle->type;
    memcpy(wanted.head.f_handle, handle->bytes, handle->size);
    AUTO_CLOSE int fd = open_by_handle_at(mount, &wanted.head, O_PATH | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        doubt(HAS_NO_SUCH_HANDLE, "cannot tell whether a file has another name");
        return NULL;
    }
    if (st.st_nlink == 0)
        return NULL;
    char *path = proc_link(&err, "/proc/self/fd/%d", fd);
    doubt_error(&err);
    return path;
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
        if (fd < 0) {
            doubt(HAS_NO_SUCH_NAME, "cannot open %.200s, where a layer may lie", point);
            continue;
        }
        add_layer_mount(fd);
    }
    return 0;
}

char *handle_path_on_overlay(const struct world *world, uint64_t inode, const struct handle *overlay, bool *hidden, struct error *err)
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
        char *path = host ? path_in_workspace(world, host, inode) : NULL;
        if (path)
            return path;
        *hidden |= host != NULL;
    }
    return NULL;
}

char *handle_path_on_mount(const struct world *world, uint64_t inode, unsigned device, const struct handle *handle, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, 16 << 20, NULL, "/proc/%d/mountinfo", world->source_pid);
    if (!text)
        return NULL;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned major_number, minor_number;
        char point[PATH_MAX];
        if (sscanf(line, "%*d %*d %u:%u %*s %4095s", &major_number, &minor_number, point) != 3)
            continue;
        if ((major_number << 20 | minor_number) != device)
            continue;
        if (files_path_is(world, point, inode))
            return must_copy_string(point);
        /* Commands that are attached to an exec session run on: one could put a link into the way of this path. */
        struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                                .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
        AUTO_CLOSE int mount = (int)syscall(SYS_openat2, world->root, point, &how, sizeof how);
        char *found = mount < 0 ? NULL : open_handle(mount, handle);
        if (found && files_path_is(world, found, inode))
            return found;
        free(found);
    }
    return NULL;
}

static int open_below(const struct mount_world *mounts, const char *path, int flags)
{
    struct open_how how = { .flags = (uint64_t)flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    return (int)AGAIN(syscall(SYS_openat2, mounts->root, path, &how, sizeof how));
}

/* The path of the inode in a namespace of mounts, if `mount` shows it there. */
static char *path_below(const struct mount_world *mounts, const struct mount *mount, uint64_t inode, const struct handle *handle)
{
    struct stat root, st;
    AUTO_CLOSE int fd = open_below(mounts, mount->point, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fstat(fd, &root) < 0) {
        doubt(HAS_NO_SUCH_NAME, "cannot tell what %.200s is", mount->point);
        return NULL;
    }
    char *found = root.st_ino == inode ? must_copy_string(mount->point) : open_handle(fd, handle);
    AUTO_CLOSE int there = found ? open_below(mounts, found, O_PATH | O_NOFOLLOW) : -1;
    if (there >= 0 && fstat(there, &st) == 0 && st.st_dev == root.st_dev && st.st_ino == inode)
        return found;
    free(found);
    return NULL;
}

char *handle_path_in_namespaces(const struct world *world, uint64_t inode, unsigned device, const struct handle *handle,
                                const struct mount_world **mounts)
{
    const struct mounts *all = world->mounts;
    for (int i = 1; all && i < all->count; i++) {
        const struct mount_table *table = &all->list[i].table;
        for (int k = 0; k < table->count; k++) {
            const struct mount *mount = &table->list[k];
            /* fdinfo prints major << 20 | minor. */
            if ((unsigned)((mount->device >> 32) << 20 | (mount->device & 0xfffff)) != device)
                continue;
            *mounts = &all->list[i];
            char *path = path_below(*mounts, mount, inode, handle);
            if (path)
                return path;
        }
    }
    *mounts = NULL;
    return NULL;
}

/* Best through the mount through which it was opened. */
static char *name_on_nested(const struct world *world, int fd, uint64_t inode, const struct handle *handle, const struct mount_world **mounts)
{
    struct statx st;
    if (!*mounts || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID | STATX_INO, &st) < 0)
        return NULL;
    for (int i = 0; i < (*mounts)->table.count; i++) {
        const struct mount *mount = &(*mounts)->table.list[i];
        char *path = mount->id == (int)st.stx_mnt_id ? path_below(*mounts, mount, inode, handle) : NULL;
        if (path)
            return path;
    }
    return handle_path_in_namespaces(world, inode, st.stx_dev_major << 20 | st.stx_dev_minor, handle, mounts);
}

char *handle_find_name(const struct world *world, int fd, uint64_t inode, const struct mount_world **mounts)
{
    struct error err = { 0 };
    union { struct file_handle head; char room[sizeof(struct file_handle) + MAX_HANDLE_SZ]; } of_file = { .head.handle_bytes = MAX_HANDLE_SZ };
    struct handle handle = { 0 };
    int mount;
    bool hidden = false;
    if (name_to_handle_at(fd, "", &of_file.head, &mount, AT_EMPTY_PATH | AT_HANDLE_FID) < 0) {
        doubt(HAS_NO_SUCH_HANDLE, "cannot tell whether a file has another name");
        return NULL;
    }
    handle.type = of_file.head.handle_type;
    handle.size = of_file.head.handle_bytes;
    memcpy(handle.bytes, of_file.head.f_handle, handle.size);
    if (!handle_is_of_overlay(&handle))
        return name_on_nested(world, fd, inode, &handle, mounts);
    char *path = handle_path_on_overlay(world, inode, &handle, &hidden, &err);
    doubt_error(&err);
    if (path)
        *mounts = NULL;
    return path;
}
