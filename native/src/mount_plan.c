#include "mount_plan.h"

#include <stdlib.h>
#include <string.h>

/* The rest of `path` below `prefix` ("" or "/…"), or NULL if it does not lie there. */
static const char *below(const char *path, const char *prefix)
{
    size_t length = strcmp(prefix, "/") == 0 ? 0 : strlen(prefix);
    if (strncmp(path, prefix, length) != 0 || (path[length] && path[length] != '/'))
        return NULL;
    return strcmp(path + length, "/") == 0 ? path + length + 1 : path + length;
}

static char *joined(const char *directory, const char *rest)
{
    size_t length = strcmp(directory, "/") == 0 && *rest ? 0 : strlen(directory);
    char *path = must_alloc(length + strlen(rest) + 1);
    memcpy(path, directory, length);
    strcpy(path + length, rest);
    return path;
}

static bool same_content(const struct mount *a, const struct mount *b)
{
    return a->device == b->device && a->root_removed == b->root_removed && strcmp(a->root, b->root) == 0;
}

bool mount_is_terminal(const struct mount *mount)
{
    return strcmp(mount->type, "devpts") == 0 && strcmp(mount->root, "/") != 0;
}

/* ---- what is there from the start ---- */

struct finder {
    const struct mount_table *start, *wanted;
    struct mount_steps *steps;
    bool *taken;                /* per mount of start */
    bool locked;
};

static const struct mount *inherited_parent(const struct finder *finder, const struct mount *mount)
{
    const struct mount_step *step = mount->parent ? &finder->steps->list[mount->parent->index] : NULL;
    return step && step->way == WAY_INHERITED ? step->source : NULL;
}

static void inherit(struct finder *finder, struct mount_step *step, const struct mount *mount)
{
    finder->taken[mount->index] = true;
    step->way = WAY_INHERITED;
    step->source = mount;
    step->attributes = mount->attributes;
}

static bool find_inherited(struct finder *finder, struct mount_step *step)
{
    const struct mount *parent = inherited_parent(finder, step->wanted);
    for (int i = 0; parent && i < finder->start->count; i++) {
        const struct mount *mount = &finder->start->list[i];
        if (finder->taken[i] || mount->parent != parent || !same_content(mount, step->wanted) || strcmp(mount->point, step->wanted->point) != 0)
            continue;
        inherit(finder, step, mount);
        return true;
    }
    return false;
}

/* ---- what can be cloned ---- */

/* The mount of the starting namespace that one meets at `path`. */
static const struct mount *met_at(const struct mount_table *start, const char *path)
{
    const struct mount *met = NULL;
    for (int i = 0; i < start->count; i++) {
        const struct mount *mount = &start->list[i];
        if (below(path, mount->point) && (!met || strlen(mount->point) >= strlen(met->point)))
            met = mount;
    }
    return met;
}

static bool find_clone(struct finder *finder, struct mount_step *step)
{
    const struct mount *best = NULL;
    const char *best_path = NULL;
    for (int i = 0; i < finder->start->count; i++) {
        const struct mount *mount = &finder->start->list[i];
        const char *path = mount->device == step->wanted->device && !mount->root_removed ? below(step->wanted->root, mount->root) : NULL;
        if (!path || step->wanted->root_removed || (best && strlen(best->root) >= strlen(mount->root)))
            continue;
        AUTO_FREE char *place = joined(mount->point, path);
        if (met_at(finder->start, place) != mount)
            continue;
        best = mount;
        best_path = path;
    }
    if (!best)
        return false;
    step->way = WAY_CLONED;
    step->source = best;
    step->path = must_copy_string(best_path);
    step->attributes = best->attributes;
    return true;
}

/* The mount of the wanted table that a mount below the cloned place would become. */
static struct mount_step *expected_step(const struct finder *finder, const struct mount_step *step, const struct mount *mount, const char *rest)
{
    AUTO_FREE char *point = joined(step->wanted->point, rest);
    for (int i = 0; i < finder->steps->count; i++) {
        struct mount_step *other = &finder->steps->list[i];
        if (other != step && other->slot == 0 && other->wanted->parent && strcmp(other->wanted->point, point) == 0 && same_content(other->wanted, mount))
            return other;
    }
    return NULL;
}

/*
 * Mounts below come along if the source has them at all. slot marks what has been decided meanwhile (1). A mount that the clone brings but that the
 * source does not have could not be taken away again: it is locked to its place.
 */
static int find_company(struct finder *finder, struct mount_step *step, struct error *err)
{
    AUTO_FREE char *place = joined(step->source->point, step->path);
    const struct mount *missing = NULL;
    for (int i = 0; i < finder->start->count; i++) {
        const struct mount *mount = &finder->start->list[i];
        const char *rest = mount != step->source ? below(mount->point, place) : NULL;
        if (!rest || !*rest)
            continue;
        struct mount_step *other = expected_step(finder, step, mount, rest);
        if (!other) {
            missing = mount;
            continue;
        }
        other->way = WAY_WITH_PARENT;
        other->source = mount;
        other->attributes = mount->attributes;
        other->slot = 1;
        step->recursive = true;
    }
    if (missing && step->recursive)
        return fail(err, "unsupported", "the mount at %.200s lacks what is mounted at %.200s, which cannot be made again", step->wanted->point,
                    missing->point);
    return 0;
}

/* ---- what needs a file system of its own ---- */

static int own_file_system(struct mount_steps *steps, const struct mount *mount)
{
    for (int i = 0; i < steps->file_system_count; i++)
        if (steps->file_systems[i].device == mount->device)
            return i;
    steps->file_systems = must_grow(steps->file_systems, (size_t)(steps->file_system_count + 1) * sizeof *steps->file_systems);
    steps->file_systems[steps->file_system_count] = (struct own_file_system){ mount->device, mount };
    return steps->file_system_count++;
}

static bool is_in(const struct mount_table *table, uint64_t device)
{
    for (int i = 0; i < table->count; i++)
        if (table->list[i].device == device)
            return true;
    return false;
}

static int find_own(struct finder *finder, struct mount_step *step, struct error *err)
{
    const struct mount *wanted = step->wanted;
    if (is_in(finder->start, wanted->device))
        return fail(err, "unsupported", "what is mounted at %.200s (%.200s of a file system of type %s) has no other name, so it cannot be made again; "
                    "unmount it", wanted->point, wanted->root, wanted->type);
    if (mount_is_terminal(wanted))
        return fail(err, "unsupported", "what is mounted at %.200s is a terminal of a devpts that was mounted inside, which cannot be made again; "
                    "unmount it", wanted->point);
    step->way = WAY_OWN;
    step->source = NULL;
    step->file_system = own_file_system(finder->steps, wanted);
    step->path = must_copy_string(strcmp(wanted->root, "/") == 0 ? "" : wanted->root);
    step->attributes = 0;
    return 0;
}

static int decide(struct finder *finder, struct mount_step *step, struct error *err)
{
    if (!step->slot && step->wanted->parent && decide(finder, &finder->steps->list[step->wanted->parent->index], err) < 0)
        return -1;
    if (step->slot)
        return 0;               /* decided; maybe it came along with its parent */
    step->slot = 1;
    if (find_inherited(finder, step))
        return 0;
    if (find_clone(finder, step))       /* without locks each mount is cloned by itself */
        return finder->locked ? find_company(finder, step, err) : 0;
    return find_own(finder, step, err);
}

/* What is there from the start and cannot stay. */
static int check_left_over(const struct finder *finder, struct error *err)
{
    struct mount_steps *steps = finder->steps;
    steps->unwanted = must_alloc((size_t)finder->start->count * sizeof *steps->unwanted);
    for (int i = 0; i < finder->start->count && !steps->new_root; i++) {
        const struct mount *mount = &finder->start->list[i];
        if (finder->taken[i] || !mount->parent)
            continue;
        if (finder->locked)
            return fail(err, "unsupported", "a mount namespace lacks the workspace's mount %.200s, which cannot be taken away in a branch", mount->point);
        steps->unwanted[steps->unwanted_count++] = mount;
    }
    return 0;
}

bool mount_steps_are_empty(const struct mount_steps *steps)
{
    bool empty = !steps->new_root && !steps->unwanted_count;
    for (int i = 0; i < steps->count && empty; i++) {
        const struct mount_step *step = &steps->list[i];
        empty = step->way == WAY_INHERITED && step->attributes == step->wanted->attributes && step->source->shared == step->wanted->shared
            && step->source->master == step->wanted->master && !step->wanted->unbindable;
    }
    return empty;
}

int mount_steps_find(const struct mount_table *start, const struct mount_table *wanted, bool locked, struct mount_steps *steps, struct error *err)
{
    const struct mount *from = mount_table_root(start), *to = mount_table_root(wanted);
    if (!from || !to)
        return fail(err, "internal", "a mount namespace has no root");
    *steps = (struct mount_steps){ .list = must_alloc((size_t)wanted->count * sizeof *steps->list), .count = wanted->count };
    AUTO_FREE bool *taken = must_alloc((size_t)start->count * sizeof *taken);
    struct finder finder = { start, wanted, steps, taken, locked };
    for (int i = 0; i < wanted->count; i++)
        steps->list[i].wanted = &wanted->list[i];
    steps->new_root = !same_content(from, to);
    if (!steps->new_root) {
        inherit(&finder, &steps->list[to->index], from);
        steps->list[to->index].slot = 1;
    }
    for (int i = 0; i < wanted->count; i++)
        if (decide(&finder, &steps->list[i], err) < 0)
            return -1;
    for (int i = 0; i < wanted->count; i++)
        steps->list[i].slot = -1;
    return check_left_over(&finder, err);
}
