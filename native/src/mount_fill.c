/* Livefork's part in making mounts: it fills file systems in memory, while the process that made them waits. */
#include "mounts.h"
#include "arena.h"
#include "files.h"
#include "rebuild.h"
#include "tree_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/securebits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The directory in which `path` ("/a/b/c") lies, made if it is missing; *name is its last part. The file system is new: nobody but us is in it. */
static int make_parents(int root, char *path, const char **name)
{
    int directory = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    char *rest = path + 1, *slash;
    while (directory >= 0 && (slash = strchr(rest, '/'))) {
        *slash = 0;
        int made = mkdirat(directory, rest, 0755), number = errno;
        int next = made < 0 && number != EEXIST ? -1 : openat(directory, rest, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(directory);
        directory = next;
        rest = slash + 1;
    }
    *name = rest;
    return directory;
}

static int fill_file(const struct own_part *part, int directory, const char *name, const char *label, struct error *err)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/self/fd/%d", part->copy);
    AUTO_CLOSE int from = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    AUTO_CLOSE int to = openat(directory, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (from < 0 || to < 0 || fstat(from, &st) < 0)
        return fail_errno(err, "cannot make %s in the branch's %s", name, label);
    if (!S_ISREG(st.st_mode))
        return fail(err, "unsupported", "%s in %s is mounted by itself and is no regular file; unmount it", name, label);
    struct timespec times[2] = { st.st_atim, st.st_mtim };
    if (ftruncate(to, st.st_size) < 0 || copy_extents(from, to, (uint64_t)st.st_size) < 0 || fchown(to, st.st_uid, st.st_gid) < 0
        || fchmod(to, st.st_mode & 07777) < 0 || futimens(to, times) < 0)
        return fail_errno(err, "cannot copy %s in %s", name, label);
    return 0;
}

static int fill_part(const struct own_part *part, int root, const char *label, struct error *err)
{
    struct tree_copy copy = { .label = label, .from = part->copy, .to = root };
    if (!*part->root)
        return tree_copy(&copy, err);
    AUTO_FREE char *path = must_copy_string(part->root);
    const char *name;
    AUTO_CLOSE int directory = make_parents(root, path, &name);
    if (directory < 0)
        return fail_errno(err, "cannot make %s in the branch's %s", part->root, label);
    if (!part->directory)
        return fill_file(part, directory, name, label, err);
    if (mkdirat(directory, name, 0700) < 0)
        return fail_errno(err, "cannot make %s in the branch's %s", part->root, label);
    AUTO_CLOSE int to = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    copy.to = to;
    return tree_copy(&copy, err);
}

/*
 * A file system that was mounted in a nested user namespace takes files only from ids which that one knows: for making them this thread is one of those,
 * with all capabilities kept. 0, 0 = itself again.
 */
static int make_files_as(uid_t uid, gid_t gid, struct error *err)
{
    static int before;
    bool again = uid == 0 && gid == 0;
    if (!again)
        before = prctl(PR_GET_SECUREBITS);
    if (!again && (before < 0 || prctl(PR_SET_SECUREBITS, before | SECBIT_NO_SETUID_FIXUP) < 0))
        return fail_errno(err, "cannot keep capabilities");
    syscall(SYS_setfsgid, gid);
    syscall(SYS_setfsuid, uid);
    /* They tell no error, but what it was before; an id that cannot be is refused. */
    if ((gid_t)syscall(SYS_setfsgid, -1) != gid || (uid_t)syscall(SYS_setfsuid, -1) != uid)
        return fail(err, "internal", "cannot make files as %u:%u", uid, gid);
    if (again && prctl(PR_SET_SECUREBITS, before) < 0)
        return fail_errno(err, "cannot give up what was needed to fill a file system");
    return 0;
}

/* The host's number of an id that the namespace knows: root if it does. */
static uint32_t known_id(const struct namespace *user, bool group)
{
    uint32_t inside;
    const struct id_map *map = group ? &user->gids : &user->uids;
    return namespace_id_inside(user, group, 0, &inside) || map->count == 0 ? 0 : map->ranges[0].host;
}

static int fill_parts(const struct world *world, const struct own_system *system, int root, struct error *err)
{
    for (int i = 0; i < system->part_count; i++)
        if (fill_part(&system->parts[i], root, system->mount->point, err) < 0)
            return -1;
    return mounts_fill_ghosts(world, system, root, err);
}

static int fill(const struct world *world, struct branch *branch, const struct own_system *system, struct error *err)
{
    const struct namespace *user = system->maker->namespace->owner;
    uint32_t uid = user ? known_id(user, false) : 0, gid = user ? known_id(user, true) : 0;
    AUTO_CLOSE int root = (int)syscall(SYS_pidfd_getfd, branch->init_pidfd, (int)aux_slot(world, system->slot), 0);
    if (root < 0)
        return fail_errno(err, "%s: cannot reach the file system for %s", branch->id, system->mount->point);
    bool other = uid != 0 || gid != 0;
    if (other && make_files_as(uid, gid, err) < 0)
        return -1;
    int status = fill_parts(world, system, root, err);
    return other && make_files_as(0, 0, err) < 0 ? -1 : status;
}

static uint32_t *word_of(const struct world *world, const struct branch *branch, uint64_t address)
{
    return (uint32_t *)(branch->arena_local + (address - world->mounts->arena));
}

int mounts_fill(const struct world *world, struct branch *branch, struct error *err)
{
    for (int i = 0; world->mounts && i < world->mounts->system_count; i++) {
        const struct own_system *system = &world->mounts->systems[i];
        if (!system->made)
            continue;
        if (rebuild_await(world, branch, word_of(world, branch, system->made), 1, "its mounts", err) < 0 || fill(world, branch, system, err) < 0)
            return -1;
        uint32_t *filled = word_of(world, branch, system->filled);
        __atomic_store_n(filled, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, filled, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    }
    return 0;
}
