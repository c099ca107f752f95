/*
 * The ops that make the mounts of a nested namespace, run by a process that has just made it and has all capabilities in it and in the user namespace
 * that owns it, but none around. First every piece is taken from what is there, as a descriptor; then they are put together, in the order in which the
 * source did it, so that what is hidden by a later mount can still be reached. A new root is built on top of the old one, which is left at the end.
 */
#include "mounts.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/securebits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MOVE_MOUNT_SET_GROUP
#define MOVE_MOUNT_SET_GROUP 0x100
#endif
#define LOCKABLE (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC | MOUNT_ATTR_NODIRATIME | MOUNT_ATTR_NOSYMFOLLOW)

struct build {
    struct plan *plan;
    struct batch *batch;
    struct mount_world *mounts;
    bool *attached, *shared;    /* by index: it has been done */
    char what[160];
};

static uint64_t slot_of(const struct build *build, int aux)
{
    return aux_slot(build->plan->world, aux);
}

static void name(struct build *build, const char *verb, const struct mount *mount)
{
    snprintf(build->what, sizeof build->what, "%s the mount at %.100s", verb, mount->point);
}

static void to_slot(struct build *build, int aux)
{
    uint64_t cell = emit_result_cell(build->batch);
    EMIT_FLAGS(build->batch, build->what, OP_LOAD(0), SYS_dup3, cell, slot_of(build, aux), O_CLOEXEC);
    EMIT_FLAGS(build->batch, build->what, OP_LOAD(0), SYS_close, cell);
}

static uint64_t text(struct build *build, const char *string)
{
    return plan_string(build->plan, string);
}

/* ---- file systems ---- */

static void set_string(struct build *build, uint64_t context, const char *key, const char *value, bool required)
{
    uint32_t tolerated = required ? 0 : TOLERATING(MOUNT_OPTION_REFUSED);
    EMIT_FLAGS(build->batch, build->what, OP_LOAD(0) | tolerated, SYS_fsconfig, context, FSCONFIG_SET_STRING, text(build, key), text(build, value), 0);
}

/* Options are shown with the host's ids and taken with those of the user namespace. */
static void set_id(struct build *build, uint64_t context, const char *key, const char *value)
{
    uint32_t inside;
    char number[16];
    const struct namespace *owner = build->mounts->namespace->owner;
    if (!namespace_id_inside(owner, strcmp(key, "gid") == 0, (uint32_t)strtoul(value, NULL, 10), &inside))
        return;
    snprintf(number, sizeof number, "%u", inside);
    set_string(build, context, key, number, true);
}

static void set_option(struct build *build, uint64_t context, char *option)
{
    static const char *const required[] = { "size", "nr_blocks", "nr_inodes", "mode", "ptmxmode", "max", "name", NULL };
    char *value = strchr(option, '=');
    bool needed = false;
    if (strcmp(option, "rw") == 0 || strcmp(option, "ro") == 0)
        return;                 /* it cannot be filled while it is read-only */
    if (!value) {
        EMIT_FLAGS(build->batch, build->what, OP_LOAD(0) | TOLERATING(MOUNT_OPTION_REFUSED), SYS_fsconfig, context, FSCONFIG_SET_FLAG,
                   text(build, option), 0, 0);
        return;
    }
    *value++ = 0;
    for (int i = 0; required[i]; i++)
        needed |= strcmp(option, required[i]) == 0;
    if (strcmp(option, "uid") == 0 || strcmp(option, "gid") == 0)
        set_id(build, context, option, value);
    else
        set_string(build, context, option, value, needed);
}

/* Some file systems show a namespace, that of whoever mounts them. */
static void enter_shown_namespace(struct build *build, const struct mount *mount)
{
    const struct process *member = build->mounts->namespace->member;
    const struct namespace *ipc = member ? member->namespaces[NAMESPACE_IPC] : NULL;
    const struct namespace *net = member ? member->namespaces[NAMESPACE_NET] : NULL;
    if (strcmp(mount->type, "sysfs") == 0 && net && net->nested)
        EMIT(build->batch, build->what, SYS_setns, slot_of(build, net->aux), CLONE_NEWNET);
    if (strcmp(mount->type, "mqueue") == 0 && ipc && ipc->nested)
        EMIT(build->batch, build->what, SYS_setns, slot_of(build, ipc->aux), CLONE_NEWIPC);
    if (strncmp(mount->type, "cgroup", 6) == 0)
        EMIT(build->batch, build->what, SYS_unshare, CLONE_NEWCGROUP);
}

static void make_system(struct build *build, struct own_system *system)
{
    struct batch *batch = build->batch;
    const struct mount *mount = system->mount;
    snprintf(build->what, sizeof build->what, "make the %s at %.100s", mount->type, mount->point);
    system->slot = files_new_aux(build->plan->world);
    enter_shown_namespace(build, mount);
    EMIT(batch, build->what, SYS_fsopen, text(build, mount->type), FSOPEN_CLOEXEC);
    uint64_t context = emit_result_cell(batch);
    set_string(build, context, "source", mount->source, false);
    AUTO_FREE char *options = must_copy_string(mount->options);
    char *rest = options;
    for (char *option; (option = strsep(&rest, ","));)
        set_option(build, context, option);
    EMIT_FLAGS(batch, build->what, OP_LOAD(0), SYS_fsconfig, context, FSCONFIG_CMD_CREATE, 0, 0, 0);
    EMIT_FLAGS(batch, build->what, OP_LOAD(0), SYS_fsmount, context, FSMOUNT_CLOEXEC, 0);
    to_slot(build, system->slot);
    EMIT_FLAGS(batch, build->what, OP_LOAD(0), SYS_close, context);
    if (!system->part_count)
        return;
    system->made = plan_reserve(build->plan, sizeof(uint32_t));
    system->filled = plan_reserve(build->plan, sizeof(uint32_t));
    EMIT(batch, build->what, OP_SIGNAL, system->made);
    EMIT(batch, build->what, OP_WAIT, system->filled, 1);
}

static void make_read_only(struct build *build, const struct own_system *system)
{
    const struct mount *mount = system->mount;
    if (strncmp(mount->options, "ro", 2) != 0 || (mount->options[2] && mount->options[2] != ','))
        return;
    name(build, "make read-only the file system of", mount);
    EMIT(build->batch, build->what, SYS_fspick, slot_of(build, system->slot), text(build, ""), FSPICK_EMPTY_PATH | FSPICK_CLOEXEC);
    uint64_t context = emit_result_cell(build->batch);
    EMIT_FLAGS(build->batch, build->what, OP_LOAD(0), SYS_fsconfig, context, FSCONFIG_SET_FLAG, text(build, "ro"), 0, 0);
    EMIT_FLAGS(build->batch, build->what, OP_LOAD(0), SYS_fsconfig, context, FSCONFIG_CMD_RECONFIGURE, 0, 0, 0);
    EMIT_FLAGS(build->batch, build->what, OP_LOAD(0), SYS_close, context);
}

static struct own_system *system_of(const struct build *build, const struct mount *mount)
{
    struct mounts *all = build->plan->world->mounts;
    for (int i = 0; i < all->system_count; i++)
        if (all->systems[i].device == mount->device)
            return &all->systems[i];
    return NULL;
}

/* ---- pieces ---- */

static bool part_is_directory(const struct own_system *system, const char *root)
{
    for (int i = 0; i < system->part_count; i++)
        if (strcmp(system->parts[i].root, root) == 0)
            return system->parts[i].directory;
    return false;
}

/* The removed file has a name until all its mounts are attached. */
static void remove_name(struct build *build, const struct mount_step *step)
{
    const struct own_system *system = system_of(build, step->wanted);
    for (int i = 0; i < step->wanted->index; i++) {
        const struct mount *other = &build->mounts->table.list[i];
        if (other->root_removed && other->device == step->wanted->device && strcmp(other->root, step->wanted->root) == 0)
            return;             /* once is enough */
    }
    name(build, "remove the name of", step->wanted);
    uint64_t flags = part_is_directory(system, step->path) ? AT_REMOVEDIR : 0;
    EMIT(build->batch, build->what, SYS_unlinkat, slot_of(build, system->slot), text(build, step->path + 1), flags);
}

static void set_attributes(struct build *build, const struct mount_step *step, uint64_t directory, const char *path)
{
    uint64_t wanted = step->wanted->attributes, has = step->attributes;
    if (wanted == has)
        return;
    struct mount_attr change = { .attr_set = wanted & ~has & ~MOUNT_ATTR__ATIME, .attr_clr = has & ~wanted & ~MOUNT_ATTR__ATIME };
    if ((wanted ^ has) & MOUNT_ATTR__ATIME) {
        change.attr_clr |= MOUNT_ATTR__ATIME;
        change.attr_set |= wanted & MOUNT_ATTR__ATIME;
    }
    name(build, "set the flags of", step->wanted);
    EMIT(build->batch, build->what, SYS_mount_setattr, directory, text(build, path), *path ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH,
         plan_data(build->plan, &change, sizeof change), sizeof change);
}

/* A clone belongs to the peer group of what it was cloned from; who belongs together is set at the end. */
static void make_private(struct build *build, const struct mount_step *step)
{
    struct mount_attr change = { .propagation = MS_PRIVATE };
    name(build, "detach from its peers", step->wanted);
    EMIT(build->batch, build->what, SYS_mount_setattr, slot_of(build, step->slot), text(build, ""), AT_EMPTY_PATH | (step->recursive ? AT_RECURSIVE : 0),
         plan_data(build->plan, &change, sizeof change), sizeof change);
}

static void take_piece(struct build *build, struct mount_step *step)
{
    uint64_t flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_SYMLINK_NOFOLLOW | (step->recursive ? AT_RECURSIVE : 0);
    name(build, "clone", step->wanted);
    if (step->way == WAY_OWN) {
        const struct own_system *system = system_of(build, step->wanted);
        EMIT(build->batch, build->what, SYS_open_tree, slot_of(build, system->slot), text(build, *step->path ? step->path + 1 : ""),
             flags | (*step->path ? 0 : AT_EMPTY_PATH));
    } else {
        char *path = NULL;
        const char *point = strcmp(step->source->point, "/") == 0 && *step->path ? "" : step->source->point;
        if (asprintf(&path, "%s%s", point, step->path) < 0)
            path = must_copy_string("/");
        EMIT(build->batch, build->what, SYS_open_tree, (uint64_t)AT_FDCWD, text(build, path), flags);
        free(path);
    }
    step->slot = files_new_aux(build->plan->world);
    to_slot(build, step->slot);
    if (step->way == WAY_CLONED && (step->source->shared || step->source->master))
        make_private(build, step);
    set_attributes(build, step, slot_of(build, step->slot), "");
}

/* ---- putting together ---- */

/* Where a mount point is found: the nearest mount above that we hold a descriptor of, and the path from there. */
static const char *place_of(const struct build *build, const struct mount *above, const char *point, uint64_t *directory)
{
    *directory = (uint64_t)AT_FDCWD;
    for (; above; above = above->parent) {
        const struct mount_step *step = &build->mounts->steps.list[above->index];
        if (step->slot < 0)
            continue;
        *directory = slot_of(build, step->slot);
        const char *rest = point + (strcmp(above->point, "/") == 0 ? 0 : strlen(above->point));
        while (*rest == '/')
            rest++;
        return rest;
    }
    return point;
}

static void attach(struct build *build, struct mount_step *step);

/* What a mount hides could not be reached any more. Propagation can bring such mounts about later than what hides them. */
static void attach_hidden(struct build *build, const struct mount *mount)
{
    struct mount_steps *steps = &build->mounts->steps;
    for (int i = 0; i < steps->count; i++)
        if (!build->attached[i] && mount_hides(mount, steps->list[i].wanted))
            attach(build, &steps->list[i]);
}

static void attach(struct build *build, struct mount_step *step)
{
    const struct mount *mount = step->wanted;
    uint64_t directory;
    if (build->attached[mount->index])
        return;
    build->attached[mount->index] = true;
    if (mounts_awaits_terminal(build->mounts, step))
        return;
    if (mount->parent)
        attach(build, &build->mounts->steps.list[mount->parent->index]);
    attach_hidden(build, mount);
    if (step->way == WAY_INHERITED || step->way == WAY_WITH_PARENT) {
        const char *path = place_of(build, mount->parent, mount->point, &directory);
        set_attributes(build, step, directory, path);
        return;
    }
    const char *path = mount->parent ? place_of(build, mount->parent, mount->point, &directory) : "/";
    if (!mount->parent)
        directory = (uint64_t)AT_FDCWD;
    name(build, "attach", mount);
    EMIT(build->batch, build->what, SYS_move_mount, slot_of(build, step->slot), text(build, ""), directory, text(build, path),
         MOVE_MOUNT_F_EMPTY_PATH | (*path ? 0 : MOVE_MOUNT_T_EMPTY_PATH));
}

static void enter_new_root(struct build *build)
{
    const struct mount *root = mount_table_root(&build->mounts->table);
    uint64_t here = text(build, ".");
    name(build, "enter", root);
    EMIT(build->batch, build->what, SYS_fchdir, slot_of(build, build->mounts->steps.list[root->index].slot));
    EMIT(build->batch, build->what, SYS_pivot_root, here, here);
    EMIT(build->batch, build->what, SYS_umount2, here, MNT_DETACH);
    EMIT(build->batch, build->what, SYS_chdir, text(build, "/"));
}

/* ---- propagation, when all stands: mounting under a shared mount would show in its peers ---- */

static const char *final_place(const struct build *build, const struct mount_step *step, uint64_t *directory)
{
    *directory = step->slot < 0 ? (uint64_t)AT_FDCWD : slot_of(build, step->slot);
    return step->slot < 0 ? step->wanted->point : "";
}

static void set_propagation(struct build *build, const struct mount_step *step, uint64_t kind)
{
    uint64_t directory;
    const char *path = final_place(build, step, &directory);
    struct mount_attr change = { .propagation = kind };
    name(build, "set the propagation of", step->wanted);
    EMIT(build->batch, build->what, SYS_mount_setattr, directory, text(build, path), *path ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH,
         plan_data(build->plan, &change, sizeof change), sizeof change);
}

static void join_group(struct build *build, const struct mount_step *from, const struct mount_step *to)
{
    uint64_t from_directory, to_directory;
    const char *from_path = final_place(build, from, &from_directory), *to_path = final_place(build, to, &to_directory);
    name(build, "set the peer group of", to->wanted);
    EMIT(build->batch, build->what, SYS_move_mount, from_directory, text(build, from_path), to_directory, text(build, to_path),
         MOVE_MOUNT_SET_GROUP | (*from_path ? 0 : MOVE_MOUNT_F_EMPTY_PATH) | (*to_path ? 0 : MOVE_MOUNT_T_EMPTY_PATH));
}

/* All members of a group can be made from the one that shows most of the file system. */
static const struct mount_step *leader_of(const struct build *build, int group)
{
    const struct mount_step *leader = NULL;
    for (int i = 0; i < build->mounts->steps.count; i++) {
        const struct mount_step *step = &build->mounts->steps.list[i];
        if (step->wanted->shared == group && !mounts_awaits_terminal(build->mounts, step) && (!leader || strlen(step->wanted->root) < strlen(leader->wanted->root)))
            leader = step;
    }
    return leader;
}

/* Is its propagation what it got with the copy of the namespace? */
static bool is_shared_as_inherited(const struct mount_step *step)
{
    const struct mount *wanted = step->wanted, *source = step->source;
    if (step->way != WAY_INHERITED)
        return !wanted->shared && !wanted->master;
    if (wanted->shared == source->shared && wanted->master == source->master)
        return true;
    return !wanted->shared && wanted->master && (wanted->master == source->master || wanted->master == source->shared);
}

static void share_group(struct build *build, int group);

/* First it becomes a slave, if it has a master here; then, with others, a group of its own. */
static void share_step(struct build *build, const struct mount_step *step)
{
    const struct mount *wanted = step->wanted;
    const struct mount_step *leader = wanted->shared ? leader_of(build, wanted->shared) : NULL;
    const struct mount_step *master = wanted->master ? leader_of(build, wanted->master) : NULL;
    if (build->shared[wanted->index] || is_shared_as_inherited(step) || mounts_awaits_terminal(build->mounts, step))
        return;
    build->shared[wanted->index] = true;
    if (leader && leader != step) {
        share_group(build, wanted->shared);
        join_group(build, leader, step);
        return;
    }
    if (master) {
        share_group(build, wanted->master);
        join_group(build, master, step);
        set_propagation(build, step, MS_SLAVE);
    }
    if (leader)
        set_propagation(build, step, MS_SHARED);
    else if (!master && step->way == WAY_INHERITED)
        set_propagation(build, step, MS_PRIVATE);
}

static void share_group(struct build *build, int group)
{
    const struct mount_step *leader = leader_of(build, group);
    if (leader)
        share_step(build, leader);
}

static void share(struct build *build)
{
    const struct mount_steps *steps = &build->mounts->steps;
    for (int i = 0; i < steps->count; i++)
        share_step(build, &steps->list[i]);
    for (int i = 0; i < steps->count; i++)
        if (steps->list[i].wanted->unbindable && !mounts_awaits_terminal(build->mounts, &steps->list[i]))
            set_propagation(build, &steps->list[i], MS_UNBINDABLE);
}

static void unmount_unwanted(struct build *build)
{
    const struct mount_steps *steps = &build->mounts->steps;
    for (int i = steps->unwanted_count - 1; i >= 0; i--) {
        name(build, "unmount", steps->unwanted[i]);
        EMIT(build->batch, build->what, SYS_umount2, text(build, steps->unwanted[i]->point), MNT_DETACH);
    }
}

static void build_namespace(struct plan *plan, struct mount_world *mounts)
{
    struct build build = { .plan = plan, .batch = mounts->namespace->nested ? plan_namespace(plan, mounts->namespace) : &plan->mounts, .mounts = mounts };
    struct mount_steps *steps = &mounts->steps;
    struct mounts *all = plan->world->mounts;
    build.attached = must_alloc((size_t)steps->count * sizeof *build.attached);
    build.shared = must_alloc((size_t)steps->count * sizeof *build.shared);
    for (int i = 0; i < all->system_count; i++)
        if (all->systems[i].maker == mounts)
            make_system(&build, &all->systems[i]);
    for (int i = 0; i < steps->count; i++)
        if ((steps->list[i].way == WAY_CLONED || steps->list[i].way == WAY_OWN) && !mounts_awaits_terminal(mounts, &steps->list[i]))
            take_piece(&build, &steps->list[i]);
    unmount_unwanted(&build);
    for (int i = 0; i < steps->count; i++)
        attach(&build, &steps->list[i]);
    for (int i = 0; i < steps->count; i++)
        if (steps->list[i].way == WAY_OWN && steps->list[i].wanted->root_removed)
            remove_name(&build, &steps->list[i]);
    for (int i = 0; i < all->system_count; i++)
        if (all->systems[i].maker == mounts)
            make_read_only(&build, &all->systems[i]);
    if (steps->new_root)
        enter_new_root(&build);
    share(&build);
    free(build.attached);
    free(build.shared);
}

int mounts_emit(struct plan *plan, struct error *err)
{
    (void)err;
    struct mounts *all = plan->world->mounts;
    if (!all)
        return 0;
    all->arena = plan->arena;
    for (int i = 0; i < all->count; i++)
        build_namespace(plan, &all->list[i]);
    mounts_emit_terminals(plan);
    return 0;
}

static void emit_setns(struct batch *batch, const struct namespace *namespace)
{
    EMIT(batch, "mount namespace", SYS_setns, aux_slot(batch->plan->world, namespace->aux), CLONE_NEWNS);
}

void mounts_enter(struct batch *batch, const struct mount_world *mounts)
{
    if (mounts)
        emit_setns(batch, mounts->namespace);
}

void mounts_leave(struct batch *batch, const struct mount_world *mounts)
{
    if (mounts)
        emit_setns(batch, batch->plan->world->mounts->list[0].namespace);
}

/* Without the fix-ups the capabilities stay; where they do not, whoever the file is to belong to may still make it. */
struct mount_maker mounts_make_as(struct batch *batch, uid_t uid, gid_t gid)
{
    struct mount_maker before;
    EMIT_FLAGS(batch, "a file's maker", TOLERATING(LACKING_RIGHTS), SYS_prctl, PR_SET_SECUREBITS, SECBIT_KEEP_CAPS | SECBIT_NO_SETUID_FIXUP);
    EMIT(batch, "a file's maker", SYS_setfsgid, gid);
    before.group = emit_result_cell(batch);
    EMIT(batch, "a file's maker", SYS_setfsuid, uid);
    before.user = emit_result_cell(batch);
    return before;
}

void mounts_made(struct batch *batch, struct mount_maker before)
{
    EMIT_FLAGS(batch, "a file's maker", OP_LOAD(0), SYS_setfsuid, before.user);
    EMIT_FLAGS(batch, "a file's maker", OP_LOAD(0), SYS_setfsgid, before.group);
    EMIT_FLAGS(batch, "a file's maker", TOLERATING(LACKING_RIGHTS), SYS_prctl, PR_SET_SECUREBITS, SECBIT_KEEP_CAPS);     /* as the restorer has it */
}
