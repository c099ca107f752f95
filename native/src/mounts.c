/* Which mounts there are, how each comes about again, and the content of file systems that live in memory. */
#include "mounts.h"
#include "cgroups.h"
#include "mount_enter.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static bool in_memory(const struct mount *mount)
{
    return strcmp(mount->type, "tmpfs") == 0 || strcmp(mount->type, "ramfs") == 0;
}

/* ---- tables ---- */

static int open_root(void *context, struct error *err)
{
    (void)context;
    int root = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root < 0 ? fail_errno(err, "cannot open the root of a mount namespace of the source") : root;
}

static bool has_groups(const struct mount_table *table)
{
    for (int i = 0; i < table->count; i++)
        if (strncmp(table->list[i].type, "cgroup", 6) == 0)
            return true;
    return false;
}

/* The roots of mounts of cgroups are told as seen from the reader's cgroup namespace. */
static int read_table(pid_t first, struct mount_world *mounts, struct error *err)
{
    if (mount_table_read(&mounts->table, mounts->mnt_ns, err) < 0 || !has_groups(&mounts->table))
        return err->code ? -1 : 0;
    mount_table_free(&mounts->table);
    int back = cgroups_enter(first, err);
    int status = back < 0 ? -1 : mount_table_read(&mounts->table, mounts->mnt_ns, err);
    if (back >= 0)
        cgroups_leave(back);
    return status;
}

static int read_world(pid_t first, struct mount_world *mounts, struct error *err)
{
    if (read_table(first, mounts, err) < 0)
        return -1;
    mounts->root = mount_enter(mounts->mnt_ns, open_root, NULL, err);
    return mounts->root < 0 ? -1 : 0;
}

static int add_world(pid_t first, struct mounts *all, struct namespace *namespace, int mnt_ns, struct error *err)
{
    struct mount_world *mounts = &all->list[all->count++];
    *mounts = (struct mount_world){ .namespace = namespace, .mnt_ns = mnt_ns, .root = -1 };
    return read_world(first, mounts, err);
}

/* ---- what every workspace has ---- */

static struct mount_table base;

int mounts_read_base(pid_t restorer, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", restorer);
    AUTO_CLOSE int mnt_ns = open(path, O_RDONLY | O_CLOEXEC);
    return mnt_ns < 0 ? fail_errno(err, "cannot open %s", path) : mount_table_read(&base, mnt_ns, err);
}

/* These go along into the branch's root (restore.c); the stage's own root does not. */
static bool goes_along(const struct mount *mount)
{
    static const char *const kept[] = { "/proc", "/sys", "/dev" };
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        size_t length = strlen(kept[i]);
        if (strncmp(mount->point, kept[i], length) == 0 && (mount->point[length] == 0 || mount->point[length] == '/'))
            return true;
    }
    return strcmp(mount->point, "/") == 0;
}

/* The source's mount that corresponds: the first at that place of that type. */
static const struct mount *counterpart(const struct mount_table *own, const struct mount *mount)
{
    for (int i = 0; i < own->count; i++)
        if (strcmp(own->list[i].point, mount->point) == 0 && strcmp(own->list[i].type, mount->type) == 0)
            return &own->list[i];
    return NULL;
}

/* The base in the source's terms: its device numbers stand for the branch's. */
static struct mount_table base_of(const struct mount_table *own)
{
    struct mount_table table = { .list = must_alloc((size_t)base.count * sizeof *table.list) };
    const struct mount *root = mount_table_root(own);
    for (int i = 0; i < base.count; i++) {
        if (!goes_along(&base.list[i]))
            continue;
        struct mount *mount = &table.list[table.count];
        *mount = base.list[i];
        mount->index = table.count++;
        mount->parent = NULL;
        bool is_root = strcmp(mount->point, "/") == 0;
        const struct mount *mine = is_root ? root : counterpart(own, mount);
        mount->device = mine ? mine->device : UINT64_MAX;
        if (is_root) {
            mount->root = "/";
            mount->attributes = 0;
        }
    }
    for (int i = 0; i < table.count; i++)
        for (int k = 0; k < table.count; k++)
            if (table.list[k].id == table.list[i].parent_id && k != i)
                table.list[i].parent = &table.list[k];
    return table;
}

static int read_own_steps(struct mount_world *own, struct error *err)
{
    if (!base.count)
        return 0;
    struct mount_table start = base_of(&own->table);
    return mount_steps_find(&start, &own->table, false, &own->steps, err);
}

static int read_worlds(struct world *world, struct mounts *all, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/mnt", world->source_pid);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0)
        return fail_errno(err, "cannot open %s", path);
    all->list = must_alloc((size_t)world->namespaces->count * sizeof *all->list);
    if (add_world(world->source_pid, all, world->namespaces->list[NAMESPACE_MNT], own, err) < 0 || read_own_steps(&all->list[0], err) < 0)
        return -1;
    for (int i = 0; i < world->namespaces->count; i++) {
        struct namespace *namespace = world->namespaces->list[i];
        if (namespace->kind == NAMESPACE_MNT && namespace->nested && add_world(world->source_pid, all, namespace, namespace->local, err) < 0)
            return -1;
    }
    return 0;
}

/* Nothing may be reached through a FUSE mount; preflight has refused them, unless they came since. */
static int check_worlds(const struct mounts *all, struct error *err)
{
    int total = 0;
    for (int i = 0; i < all->count; i++) {
        total += i ? all->list[i].table.count : 0;
        for (int k = 0; k < all->list[i].table.count; k++)
            if (strncmp(all->list[i].table.list[k].type, "fuse", 4) == 0)
                return fail(err, "unsupported", "a FUSE file system is mounted at %.200s; unmount it", all->list[i].table.list[k].point);
    }
    if (total > MAX_NESTED_MOUNTS)
        return fail(err, "limit", "the nested mount namespaces hold %d mounts, more than %d; end some programs", total, MAX_NESTED_MOUNTS);
    return 0;
}

/* ---- file systems ---- */

static struct own_system *find_system(struct mounts *all, uint64_t device)
{
    for (int i = 0; i < all->system_count; i++)
        if (all->systems[i].device == device)
            return &all->systems[i];
    return NULL;
}

static int add_systems(const struct world *world, struct mounts *all, struct mount_world *mounts, struct error *err)
{
    for (int i = 0; i < mounts->steps.file_system_count; i++) {
        const struct own_file_system *from = &mounts->steps.file_systems[i];
        if (find_system(all, from->device))
            continue;
        if (mounts_check_system(world, mounts, from->mount, err) < 0)
            return -1;
        all->systems = must_grow(all->systems, (size_t)(all->system_count + 1) * sizeof *all->systems);
        all->systems[all->system_count++] = (struct own_system){ .device = from->device, .mount = from->mount, .maker = mounts, .slot = -1 };
    }
    return 0;
}

/* ---- content ---- */

struct reach {
    const struct mount_table *table;
    const struct mount *mount;
    int user_ns;                /* that owns the namespace; -1 = the workspace's own */
};

/* It hides the mount, or hangs on one that does. */
static bool is_in_the_way(const struct mount *other, const struct mount *mount)
{
    while (other && !mount_hides(other, mount))
        other = other->parent;
    return other != NULL;
}

/* What hides a mount is taken away in a copy of the namespace. The mounts are known by their devices there, since they have new ids. */
static int uncover_mount(void *context, struct error *err)
{
    const struct reach *reach = context;
    const struct mount *mount = reach->mount;
    struct stat st;
    for (int i = reach->table->count - 1; i >= 0; i--)
        if (is_in_the_way(&reach->table->list[i], mount) && umount2(reach->table->list[i].point, MNT_DETACH) < 0)
            return -1;
    AUTO_CLOSE int place = mount_open_point(mount->point);
    if (place < 0 || fstat(place, &st) < 0 || ((uint64_t)major(st.st_dev) << 32 | minor(st.st_dev)) != mount->device)
        return -1;
    return mount_copy(mount->point, err);
}

/* The copy of a mount, or -1 without an error if another one hides it. */
static int reach_mount(void *context, struct error *err)
{
    const struct reach *reach = context;
    const struct mount *mount = reach->mount;
    struct statx st;
    AUTO_CLOSE int place = mount_open_point(mount->point);
    if (place < 0 || statx(place, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &st) < 0 || (int)st.stx_mnt_id != mount->id)
        return mount_in_copy(reach->user_ns, uncover_mount, context);
    return mount_copy(mount->point, err);
}

/* A removed file is covered by itself alone. */
static bool is_covered(const struct own_system *system, const struct mount *mount)
{
    const char *root = strcmp(mount->root, "/") == 0 ? "" : mount->root;
    for (int i = 0; i < system->part_count; i++) {
        size_t length = strlen(system->parts[i].root);
        if (mount->root_removed && strcmp(root, system->parts[i].root) != 0)
            continue;
        if (strncmp(root, system->parts[i].root, length) == 0 && (root[length] == 0 || root[length] == '/'))
            return true;
    }
    return false;
}

static int add_part(struct own_system *system, const struct mount_world *mounts, const struct mount *mount, struct error *err)
{
    const struct namespace *owner = mounts->namespace->owner;
    struct reach reach = { &mounts->table, mount, owner && owner->nested ? owner->local : -1 };
    const char *root = strcmp(mount->root, "/") == 0 ? "" : mount->root;
    struct stat st;
    int copy = mount_enter(mounts->mnt_ns, reach_mount, &reach, err);
    if (copy < 0)
        return err->code ? -1 : 0;
    if (fstat(copy, &st) < 0)
        return fail_errno(err, "cannot look at %s of the source", mount->point);
    system->parts = must_grow(system->parts, (size_t)(system->part_count + 1) * sizeof *system->parts);
    system->parts[system->part_count++] = (struct own_part){ must_copy_string(root), copy, S_ISDIR(st.st_mode) };
    return 0;
}

struct view { const struct mount_world *mounts; const struct mount *mount; };

static int by_root(const void *left, const void *right)
{
    size_t a = strlen(((const struct view *)left)->mount->root), b = strlen(((const struct view *)right)->mount->root);
    return a < b ? -1 : a > b;
}

/* Shortest roots first: most file systems are mounted whole somewhere, and then nothing else needs to be looked at. */
static int read_content(struct mounts *all, struct own_system *system, struct error *err)
{
    struct view *views = NULL;
    int count = 0, status = 0;
    for (int i = 0; i < all->count; i++) {
        for (int k = 0; k < all->list[i].table.count; k++) {
            if (all->list[i].table.list[k].device != system->device)
                continue;
            views = must_grow(views, (size_t)(count + 1) * sizeof *views);
            views[count++] = (struct view){ &all->list[i], &all->list[i].table.list[k] };
        }
    }
    qsort(views, (size_t)count, sizeof *views, by_root);
    for (int i = 0; i < count && status == 0; i++)
        if (!is_covered(system, views[i].mount))
            status = add_part(system, views[i].mounts, views[i].mount, err);
    for (int i = 0; i < count && status == 0; i++)
        if (!is_covered(system, views[i].mount))
            status = fail(err, "unsupported", "the file system mounted at %.200s is hidden by another mount; unmount that one", views[i].mount->point);
    free(views);
    return status;
}

/* ---- how it comes about ---- */

static struct mount_world *world_of(struct mounts *all, const struct namespace *namespace)
{
    for (int i = 0; i < all->count; i++)
        if (all->list[i].namespace == namespace)
            return &all->list[i];
    return NULL;
}

/* The kernel does not tell what a namespace was copied from: most likely that of the nearest forefather of its processes who lives elsewhere. */
static struct mount_world *likely_origin(struct mounts *all, const struct mount_world *mounts)
{
    const struct namespace *namespace = mounts->namespace;
    const struct process *process = namespace->member;
    while (process && process->namespaces[NAMESPACE_MNT] == namespace)
        process = process->parent;
    const struct namespace *origin = process ? process->namespaces[NAMESPACE_MNT] : NULL;
    if (!origin || !origin->nested || origin->index > namespace->index || !namespace_contains(origin->owner, namespace->owner))
        return NULL;
    return world_of(all, origin);
}

static int find_steps(struct mounts *all, struct mount_world *mounts, struct error *err)
{
    struct error ignored = { 0 };
    struct mount_world *origin = likely_origin(all, mounts);
    /* What a namespace around has locked stays locked in copies of a copy, too. */
    bool locked = mounts->namespace->owner && mounts->namespace->owner->nested;
    if (origin && mount_steps_find(&origin->table, &mounts->table, locked, &mounts->steps, &ignored) == 0) {
        mounts->namespace->origin = origin->namespace;
        return 0;
    }
    return mount_steps_find(&all->list[0].table, &mounts->table, locked, &mounts->steps, err);
}

/* Programs inside cannot change the workspace's own mounts: what preflight saw holds. */
static bool own_differ = true;

static bool has_nested(const struct world *world)
{
    for (int i = 0; world->namespaces && i < world->namespaces->count; i++)
        if (world->namespaces->list[i]->kind == NAMESPACE_MNT && world->namespaces->list[i]->nested)
            return true;
    return false;
}

int mounts_read(struct world *world, struct error *err)
{
    bool nested = has_nested(world);
    if (!nested && (!base.count || !own_differ))
        return 0;
    struct mounts *all = world->mounts = must_alloc(sizeof *all);
    if (read_worlds(world, all, err) < 0)
        return -1;
    own_differ = base.count && !mount_steps_are_empty(&all->list[0].steps);
    if (!nested && !own_differ) {
        mounts_close(world);
        return 0;
    }
    if (check_worlds(all, err) < 0 || add_systems(world, all, &all->list[0], err) < 0)
        return -1;
    for (int i = 1; i < all->count; i++)
        if (find_steps(all, &all->list[i], err) < 0 || add_systems(world, all, &all->list[i], err) < 0)
            return -1;
    for (int i = 0; i < all->system_count; i++)
        if (in_memory(all->systems[i].mount) && read_content(all, &all->systems[i], err) < 0)
            return -1;
    return 0;
}

void mounts_close(struct world *world)
{
    struct mounts *all = world->mounts;
    for (int i = 0; all && i < all->count; i++) {
        close_fd(&all->list[i].root);
        if (i == 0)
            close_fd(&all->list[i].mnt_ns);     /* the others' belong to their namespaces */
    }
    for (int i = 0; all && i < all->system_count; i++)
        for (int k = 0; k < all->systems[i].part_count; k++)
            close_fd(&all->systems[i].parts[k].copy);
    world->mounts = NULL;
}

/* ---- whose file ---- */

static const struct mount_world *mounts_with(const struct mounts *all, int id)
{
    for (int i = 1; i < all->count; i++)
        for (int k = 0; k < all->list[i].table.count; k++)
            if (all->list[i].table.list[k].id == id)
                return &all->list[i];
    return NULL;
}

static const struct mount_world *mounts_at(const struct mounts *all, int directory, const char *path, int flags)
{
    struct statx st;
    if (statx(directory, path, flags | AT_STATX_DONT_SYNC, STATX_MNT_ID, &st) < 0)
        return NULL;
    return mounts_with(all, (int)st.stx_mnt_id);
}

const struct mount_world *mounts_of_file(const struct world *world, int fd)
{
    return world->mounts ? mounts_at(world->mounts, fd, "", AT_EMPTY_PATH) : NULL;
}

const struct mount_world *mounts_of_process(const struct process *process)
{
    const struct mounts *all = process->world->mounts;
    for (int i = 1; all && i < all->count; i++)
        if (all->list[i].namespace == process->namespaces[NAMESPACE_MNT])
            return &all->list[i];
    return NULL;
}

const struct mount_world *mounts_of_link(const struct process *process, const char *path)
{
    const struct mounts *all = process->world->mounts;
    if (!all || !process->namespaces[NAMESPACE_MNT] || !process->namespaces[NAMESPACE_MNT]->nested)
        return NULL;
    return mounts_at(all, AT_FDCWD, path, 0);
}
