/*
 * Files without a name in file systems that were mounted inside. Livefork makes them with a name when it fills the file system of a branch; the branch opens
 * each through the mount where it was, and takes the name away again.
 */
#include "mounts.h"
#include "files.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ghost_place {
    const struct mount_world *mounts;
    const struct own_system *system;
    char *path;                 /* in the namespace */
    char *below, *parent;       /* the same in the file system, and the directory there: "/…" */
    struct stat directory;
};

static int open_below(int root, const char *path, int flags)
{
    struct open_how how = { .flags = (uint64_t)flags | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    return (int)syscall(SYS_openat2, root, path, &how, sizeof how);
}

static int mount_id(int fd)
{
    struct statx st;
    return statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &st) < 0 ? -1 : (int)st.stx_mnt_id;
}

static const struct mount *mount_of(const struct mount_world *mounts, int fd)
{
    int id = mount_id(fd);
    for (int i = 0; i < mounts->table.count; i++)
        if (mounts->table.list[i].id == id)
            return &mounts->table.list[i];
    return NULL;
}

/* One that is filled, and in which a name can be taken away once all mounts are there. */
static const struct own_system *system_of(const struct mounts *all, const struct mount *mount)
{
    for (int i = 0; i < all->system_count; i++) {
        const struct own_system *system = &all->systems[i];
        bool read_only = strncmp(system->mount->options, "ro", 2) == 0 && (!system->mount->options[2] || system->mount->options[2] == ',');
        if (system->device == mount->device)
            return system->part_count && !read_only ? system : NULL;
    }
    return NULL;
}

static bool is_taken(const struct world *world, const struct mount_world *mounts, const char *path)
{
    for (int i = 0; i < world->openings->ghost_count; i++) {
        const struct ghost_place *place = world->openings->ghosts[i]->place;
        if (place && place->mounts == mounts && strcmp(place->path, path) == 0)
            return true;
    }
    struct stat st;
    AUTO_CLOSE int fd = open_below(mounts->root, path, O_PATH | O_NOFOLLOW);
    return fd >= 0 && fstat(fd, &st) == 0;
}

/* The directory of `path` in the namespace, if it is reached through that mount. */
static bool is_on(const struct mount_world *mounts, const struct mount *mount, const char *path, struct stat *directory)
{
    AUTO_CLOSE int fd = open_below(mounts->root, path, O_PATH | O_DIRECTORY);
    return fd >= 0 && fstat(fd, directory) == 0 && mount_id(fd) == mount->id;
}

/* Under its old name if that is free, else by another one in the same directory, or where the file system is mounted. NULL = nowhere. */
static char *choose_path(const struct world *world, struct ghost_place *place, const struct mount *mount, const struct ghost *ghost, int number)
{
    AUTO_FREE char *parent = must_copy_string(ghost->path);
    char *slash = strrchr(parent, '/'), *path = NULL;
    if (!slash)
        return NULL;
    slash[slash == parent] = 0;
    bool there = is_on(place->mounts, mount, parent, &place->directory);
    if (there && !is_taken(world, place->mounts, ghost->path))
        return must_copy_string(ghost->path);
    if (!there && !is_on(place->mounts, mount, mount->point, &place->directory))
        return NULL;
    const char *directory = there ? parent : mount->point;
    if (asprintf(&path, "%s/.tclone-unlinked-%d", strcmp(directory, "/") == 0 ? "" : directory, number) < 0)
        return NULL;
    if (!is_taken(world, place->mounts, path))
        return path;
    free(path);
    return NULL;
}

void mounts_place_ghost(const struct world *world, struct ghost *ghost, int number)
{
    const struct mount *mount = ghost->mounts && !ghost->linkable ? mount_of(ghost->mounts, ghost->source) : NULL;
    struct ghost_place place = { .mounts = ghost->mounts, .system = mount && !mount->root_removed ? system_of(world->mounts, mount) : NULL };
    if (!place.system || !(place.path = choose_path(world, &place, mount, ghost, number)))
        return;
    size_t point = strcmp(mount->point, "/") == 0 ? 0 : strlen(mount->point);
    if (asprintf(&place.below, "%s%s", strcmp(mount->root, "/") == 0 ? "" : mount->root, place.path + point) < 0)
        return;
    place.parent = must_copy_string(place.below);
    char *slash = strrchr(place.parent, '/');
    slash[slash == place.parent] = 0;
    ghost->place = must_alloc(sizeof place);
    *ghost->place = place;
}

void mounts_emit_ghost(struct batch *batch, const struct ghost *ghost)
{
    const struct ghost_place *place = ghost->place;
    const struct world *world = batch->plan->world;
    struct timespec times[2] = { place->directory.st_atim, place->directory.st_mtim };
    uint64_t root = aux_slot(world, place->system->slot);
    mounts_enter(batch, place->mounts);
    EMIT(batch, ghost->path, SYS_openat, (uint64_t)AT_FDCWD, plan_string(batch->plan, place->path), O_PATH | O_NOFOLLOW | O_CLOEXEC);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, ghost->path, OP_LOAD(0), SYS_dup3, cell, aux_slot(world, ghost->aux), 0);
    EMIT_FLAGS(batch, ghost->path, OP_LOAD(0), SYS_close, cell);
    EMIT(batch, ghost->path, SYS_unlinkat, root, plan_string(batch->plan, place->below + 1), S_ISDIR(ghost->st.st_mode) ? AT_REMOVEDIR : 0);
    EMIT(batch, ghost->path, SYS_utimensat, root, plan_string(batch->plan, place->parent[1] ? place->parent + 1 : "."),
         plan_data(batch->plan, times, sizeof times), 0);
    mounts_leave(batch, place->mounts);
}

int mounts_fill_ghosts(const struct world *world, const struct own_system *system, int root, struct error *err)
{
    const struct file_openings *all = world->openings;
    for (int i = 0; all && i < all->ghost_count; i++) {
        const struct ghost_place *place = all->ghosts[i]->place;
        if (!place || place->system != system)
            continue;
        AUTO_CLOSE int directory = open_below(root, place->parent, O_PATH | O_DIRECTORY);
        if (directory < 0)
            return fail_errno(err, "cannot open the directory of the unlinked file %s in the branch", all->ghosts[i]->path);
        if (files_make_named(all->ghosts[i], directory, strrchr(place->below, '/') + 1, err) < 0)
            return -1;
    }
    return 0;
}
