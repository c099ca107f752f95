/* What of mounts is found before the freeze. */
#include "mounts.h"
#include "doubt.h"
#include "mountinfo.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/*
 * The types of file handles that FUSE gives out (include/linux/exportfs.h). File systems without handles of their own have them too (proc, devpts),
 * those that hold files have not.
 */
#define FILEID_INO64_GEN 0x81
#define FILEID_INO64_GEN_PARENT 0x82
#ifndef AT_HANDLE_FID
#define AT_HANDLE_FID 0x200
#endif

/* The file systems met in mount tables. */
struct file_system {
    uint64_t device;
    bool fuse;
};

static struct file_system *file_systems;
static int file_system_count;

static const struct file_system *find_file_system(uint64_t device)
{
    for (int i = 0; i < file_system_count; i++)
        if (file_systems[i].device == device)
            return &file_systems[i];
    return NULL;
}

static bool is_fuse(const struct mount *mount)
{
    return strncmp(mount->type, "fuse", 4) == 0;
}

static void note_file_system(uint64_t device, bool fuse)
{
    if (find_file_system(device))
        return;
    file_systems = must_grow(file_systems, (size_t)(file_system_count + 1) * sizeof *file_systems);
    file_systems[file_system_count++] = (struct file_system){ device, fuse };
}

void mounts_note_harmless(uint64_t device)
{
    note_file_system(device, false);
}

/*
 * Asks the kernel alone: the type of the handle, and the device as it is known. A file of such a type on a file system that is mounted nowhere
 * counts as FUSE's, since nothing tells it from one.
 */
#define GONE_OR_WITHOUT_HANDLE \
    ANSWERS(ENOENT, ESRCH, EOPNOTSUPP, EOVERFLOW, EINVAL, EACCES, EPERM, ESTALE, ELOOP, ENOTDIR, ENAMETOOLONG, ENXIO, ENODEV, ENOTCONN, ECONNABORTED)

static bool fuse_serves(const char *path)
{
    union { struct file_handle handle; char room[sizeof(struct file_handle) + MAX_HANDLE_SZ]; } buffer;
    int mount;
    struct statx st;
    buffer.handle.handle_bytes = MAX_HANDLE_SZ;
    if (name_to_handle_at(AT_FDCWD, path, &buffer.handle, &mount, AT_SYMLINK_FOLLOW | AT_HANDLE_FID) < 0) {
        doubt(GONE_OR_WITHOUT_HANDLE, "cannot tell whether a FUSE server serves %s", path);
        return false;
    }
    if (buffer.handle.handle_type != FILEID_INO64_GEN && buffer.handle.handle_type != FILEID_INO64_GEN_PARENT)
        return false;
    if (statx(AT_FDCWD, path, AT_STATX_DONT_SYNC, STATX_TYPE, &st) < 0) {
        doubt(GONE_OR_WITHOUT_HANDLE, "cannot tell whether a FUSE server serves %s", path);
        return false;
    }
    const struct file_system *known = find_file_system((uint64_t)st.stx_dev_major << 32 | st.stx_dev_minor);
    return known ? known->fuse : true;
}

/* ---- before the freeze ---- */

/* The container's own mounts are of these types, and programs can have their own of most. */
static bool type_is_known(const char *type)
{
    static const char *const known[] = { "overlay", "proc", "sysfs", "tmpfs", "ramfs", "devpts", "mqueue", "devtmpfs", "cgroup", "cgroup2",
                                        "binfmt_misc", NULL };
    for (int i = 0; known[i]; i++)
        if (strcmp(type, known[i]) == 0)
            return true;
    return false;
}

static int check_mount(const struct process *process, const struct mount *mount, struct error *err)
{
    const char *label = process_label(process);
    if (is_fuse(mount))
        return fail(err, "unsupported", "%s sees the FUSE file system %.100s at %.200s; unmount it (fusermount3 -u) or end the program that serves it",
                    label, mount->source, mount->point);
    if (!type_is_known(mount->type))
        return fail(err, "unsupported", "%s sees a file system of type %.40s at %.200s, which cannot be made again; unmount it", label, mount->type,
                    mount->point);
    return 0;
}

static bool seen_before(ino_t inode)
{
    static ino_t *seen;
    static int count;
    for (int i = 0; i < count; i++)
        if (seen[i] == inode)
            return true;
    seen = must_grow(seen, (size_t)(count + 1) * sizeof *seen);
    seen[count++] = inode;
    return false;
}

static int *known_ids;
static int known_count;

static void note_ids(const struct mount_table *table)
{
    known_ids = must_grow(known_ids, (size_t)(known_count + table->count) * sizeof *known_ids);
    for (int i = 0; i < table->count; i++)
        known_ids[known_count++] = table->list[i].id;
}

bool mounts_preflight_knows(int id)
{
    for (int i = 0; i < known_count; i++)
        if (known_ids[i] == id)
            return true;
    return false;
}

static void check_mounts(const struct process *process, struct blockers *blockers)
{
    char path[64];
    struct stat st;
    struct error err = { 0 };
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", process->pid);
    AUTO_CLOSE int mnt_ns = open(path, O_RDONLY | O_CLOEXEC);
    if (mnt_ns < 0 || fstat(mnt_ns, &st) < 0) {     /* it has ended meanwhile */
        doubt(ANSWERS(ENOENT, ESRCH, EACCES, EPERM), "cannot open %s", path);
        return;
    }
    if (seen_before(st.st_ino))
        return;
    struct mount_table table = { 0 };
    int status = mount_table_read(&table, mnt_ns, &err);
    note_ids(&table);
    for (int i = 0; i < table.count; i++)
        note_file_system(table.list[i].device, is_fuse(&table.list[i]));
    for (int i = 0; i < table.count && status == 0; i++)
        status = check_mount(process, &table.list[i], &err);
    mount_table_free(&table);
    if (status < 0 && strcmp(err.code, "unsupported") == 0)
        blockers_add(blockers, process, -1, err.message);
    else
        doubt_error(&err);
}

/* The kernel names no file whose path is longer than a page. */
void mounts_refuse_long(const struct process *process, const char *link, int fd, struct blockers *blockers)
{
    char path[64], target[PATH_MAX + 64], message[384];
    snprintf(path, sizeof path, "/proc/%d/%s", process->pid, link);
    if (readlink(path, target, sizeof target) >= 0)
        return;
    if (errno != ENAMETOOLONG) {
        doubt(ANSWERS(ENOENT, ESRCH, EACCES, EPERM), "cannot tell how long the path of %s's %s is", process_label(process), link);
        return;
    }
    snprintf(message, sizeof message, "%s uses a file whose path has more than 4096 bytes (its %s), which cannot be forked; leave the directory or close the file",
             process_label(process), link);
    blockers_add(blockers, process, fd, message);
}

/* Where it stands, and what it runs. */
static void check_places(const struct process *process, struct blockers *blockers)
{
    static const struct { const char *name, *what; } places[] = { { "cwd", "stands in a directory" }, { "root", "has its root" }, { "exe", "runs" } };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char path[64], message[256];
        snprintf(path, sizeof path, "/proc/%d/%s", process->pid, places[i].name);
        mounts_refuse_long(process, places[i].name, -1, blockers);
        if (!fuse_serves(path))
            continue;
        snprintf(message, sizeof message, "%s %s in a FUSE file system; end it, then unmount the file system", process_label(process), places[i].what);
        blockers_add(blockers, process, -1, message);
    }
}

void mounts_preflight(const struct process *process, struct blockers *blockers)
{
    check_mounts(process, blockers);
    check_places(process, blockers);
}

bool mounts_refuse_fuse(const struct process *process, int fd, const char *link, struct blockers *blockers)
{
    char path[64], message[512];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process->pid, fd);
    if (*link != '/' || !fuse_serves(path))
        return false;
    /* Memory by memfd_secret lies on a file system that is mounted nowhere, too. */
    if (strcmp(link, "/secretmem (deleted)") == 0)
        snprintf(message, sizeof message, "%s holds secret memory (memfd_secret, fd %d), which nobody else can read; end the program that uses it",
                 process_label(process), fd);
    else
        snprintf(message, sizeof message, "%s has %.200s open (fd %d), which a FUSE server serves; close it, then unmount the file system",
                 process_label(process), link, fd);
    blockers_add(blockers, process, fd, message);
    return true;
}
