/*
 * The node of a terminal that is mounted somewhere: bubblewrap puts the one it was started from at /dev/console of its sandbox. In a branch the mounts are
 * there before the terminals, so these come last, by pid 1. Nothing is opened.
 */
#include "mounts.h"

#include <fcntl.h>
#include <linux/mount.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

bool mounts_awaits_terminal(const struct mount_world *mounts, const struct mount_step *step)
{
    /* What every workspace has from the start is there already. */
    return mount_is_terminal(step->wanted) && (mounts->namespace->nested || step->way != WAY_INHERITED);
}

/* Where pid 1 of the branch meets all of the file system. */
static const struct mount *whole_of(const struct mount_table *table, uint64_t device)
{
    for (int i = 0; i < table->count; i++)
        if (table->list[i].device == device && strcmp(table->list[i].root, "/") == 0)
            return &table->list[i];
    return NULL;
}

/* A terminal whose other end is outside (a session of exec) is not there in a branch: then the mount is not, either. */
static void emit_terminal(struct batch *batch, const struct mount_world *mounts, const struct mount_step *step, const struct mount *whole)
{
    struct plan *plan = batch->plan;
    const struct mount *wanted = step->wanted;
    char node[4096 + 64], what[160];
    uint64_t empty = plan_string(plan, "");
    struct mount_attr change = { .attr_set = wanted->attributes & ~MOUNT_ATTR__ATIME, .attr_clr = whole->attributes & ~wanted->attributes & ~MOUNT_ATTR__ATIME };
    if ((wanted->attributes ^ whole->attributes) & MOUNT_ATTR__ATIME) {
        change.attr_clr |= MOUNT_ATTR__ATIME;
        change.attr_set |= wanted->attributes & MOUNT_ATTR__ATIME;
    }
    snprintf(node, sizeof node, "%.4000s%.64s", whole->point, wanted->root);
    snprintf(what, sizeof what, "mount a terminal at %.100s", wanted->point);
    EMIT_FLAGS(batch, what, TOLERATING(TERMINAL_MISSING), SYS_open_tree, (uint64_t)AT_FDCWD, plan_string(plan, node), OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, TOLERATING(NOT_OPENED) | OP_LOAD(0), SYS_mount_setattr, cell, empty, AT_EMPTY_PATH, plan_data(plan, &change, sizeof change),
               sizeof change);
    mounts_enter(batch, mounts);
    EMIT_FLAGS(batch, what, TOLERATING(NOT_OPENED) | OP_LOAD(0), SYS_move_mount, cell, empty, (uint64_t)AT_FDCWD, plan_string(plan, wanted->point),
               MOVE_MOUNT_F_EMPTY_PATH);
    mounts_leave(batch, mounts);
    EMIT_FLAGS(batch, what, TOLERATING(NOT_OPENED) | OP_LOAD(0), SYS_close, cell);
}

void mounts_emit_terminals(struct plan *plan)
{
    const struct mounts *all = plan->world->mounts;
    for (int i = 0; all && i < all->count; i++) {
        const struct mount_world *mounts = &all->list[i];
        for (int k = 0; k < mounts->steps.count; k++) {
            const struct mount_step *step = &mounts->steps.list[k];
            const struct mount *whole = whole_of(&all->list[0].table, step->wanted->device);
            if (whole && mounts_awaits_terminal(mounts, step))
                emit_terminal(&plan->common[STAGE_CONNECT], mounts->namespace->nested ? mounts : NULL, step, whole);
        }
    }
}

const struct own_system *mounts_system(const struct world *world, dev_t device)
{
    uint64_t wanted = (uint64_t)major(device) << 32 | minor(device);
    for (int i = 0; world->mounts && i < world->mounts->system_count; i++)
        if (world->mounts->systems[i].device == wanted)
            return &world->mounts->systems[i];
    return NULL;
}
