#include "ipc_namespaces.h"
#include "files.h"
#include "posix_queues.h"
#include "rebuild.h"
#include "sysv.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Futex words in the arena; 0 = nothing lies in namespaces made inside. */
static uint64_t made, furnished;
static uint64_t arena;           /* address in the branch */

static int visit(struct world *world, int there, const struct namespace *where, int (*read)(struct world *, const struct namespace *, struct error *),
                 struct error *err)
{
    AUTO_CLOSE int home = -1;
    if (sysv_enter(there, &home, err) < 0)
        return -1;
    int status = read(world, where, err);
    return sysv_leave(home, err) < 0 ? -1 : status;
}

int ipc_each(struct world *world, int (*read)(struct world *, const struct namespace *, struct error *), struct error *err)
{
    struct namespaces *all = world->namespaces;
    if (visit(world, world->ipc_ns, all->list[NAMESPACE_IPC], read, err) < 0)
        return -1;
    for (int i = NAMESPACE_KINDS; i < all->count; i++)
        if (all->list[i]->kind == NAMESPACE_IPC && visit(world, all->list[i]->local, all->list[i], read, err) < 0)
            return -1;
    return 0;
}

int ipc_of_branch(const struct branch *branch, const struct namespace *where)
{
    if (!where->nested)
        return branch->ipc_ns;
    return branch->nested_ipc ? branch->nested_ipc[where->index] : -1;
}

static bool holds_something(const struct world *world, const struct namespace *where)
{
    return where->nested && where->kind == NAMESPACE_IPC && (sysv_lies_in(world, where) || mqueue_lies_in(where));
}

void ipc_emit(struct plan *plan)
{
    struct namespaces *all = plan->world->namespaces;
    for (int i = 0; i < all->count && !made; i++)
        if (holds_something(plan->world, all->list[i])) {
            arena = plan->arena;
            made = plan_reserve(plan, sizeof(uint32_t));
            furnished = plan_reserve(plan, sizeof(uint32_t));
            EMIT(&plan->common[STAGE_MAKE], "IPC namespaces", OP_SIGNAL, made);
            EMIT(&plan->common[STAGE_MAKE], "IPC namespaces", OP_WAIT, furnished, 1);
        }
}

static int furnish(struct world *world, struct branch *branch, const struct namespace *where, struct error *err)
{
    int *there = &branch->nested_ipc[where->index];
    *there = (int)syscall(SYS_pidfd_getfd, branch->init_pidfd, (int)aux_slot(world, where->aux), 0);
    if (*there < 0)
        return fail_errno(err, "%s: cannot reach an IPC namespace", branch->id);
    return sysv_make(world, branch, where, err) < 0 ? -1 : mqueue_make(branch, where, err);
}

static uint32_t *word_of(const struct branch *branch, uint64_t address)
{
    return (uint32_t *)(branch->arena_local + (address - arena));
}

int ipc_furnish(struct world *world, struct branch *branch, struct error *err)
{
    struct namespaces *all = world->namespaces;
    if (!made)
        return 0;
    branch->nested_ipc = must_alloc((size_t)all->count * sizeof *branch->nested_ipc);
    for (int i = 0; i < all->count; i++)
        branch->nested_ipc[i] = -1;
    if (rebuild_await(world, branch, word_of(branch, made), 1, "its IPC namespaces", err) < 0)
        return -1;
    for (int i = 0; i < all->count; i++)
        if (holds_something(world, all->list[i]) && furnish(world, branch, all->list[i], err) < 0)
            return -1;
    uint32_t *word = word_of(branch, furnished);
    __atomic_store_n(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return 0;
}

void ipc_emit_enter(struct batch *batch, const struct namespace *where)
{
    if (where->nested)
        EMIT(batch, "IPC namespace", SYS_setns, aux_slot(batch->plan->world, where->aux), CLONE_NEWIPC);
}

void ipc_emit_leave(struct batch *batch, const struct namespace *where)
{
    if (where->nested)
        EMIT(batch, "IPC namespace", SYS_setns, aux_slot(batch->plan->world, batch->plan->world->namespaces->list[NAMESPACE_IPC]->aux), CLONE_NEWIPC);
}
