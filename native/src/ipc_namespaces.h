/*
 * The IPC namespaces of a workspace: its own, and those that programs made inside. What lies in them (System V objects, POSIX message queues) is read and
 * made by livefork, which visits one after the other. Those made inside are there in a branch only when its first process has made them: it then waits
 * until they are furnished.
 */
#ifndef TCLONE_IPC_NAMESPACES_H
#define TCLONE_IPC_NAMESPACES_H

#include "branch.h"
#include "namespaces.h"
#include "plan.h"
#include "world.h"

/* Visit each of the source's, its own first, and let `read` ask there. */
int ipc_each(struct world *world, int (*read)(struct world *, const struct namespace *, struct error *), struct error *err);
/* A descriptor of the branch's namespace that stands for `where`; -1 = it has not been needed. */
int ipc_of_branch(const struct branch *branch, const struct namespace *where);

/* Before anything else of STAGE_MAKE. */
void ipc_emit(struct plan *plan);
/* Furnish those made inside; the others are when the branch is started (shared_make, mqueue_make). */
int ipc_furnish(struct world *world, struct branch *branch, struct error *err);

/* Around an op that is to happen there; nothing is emitted if it is the workspace's own. */
void ipc_emit_enter(struct batch *batch, const struct namespace *where);
void ipc_emit_leave(struct batch *batch, const struct namespace *where);

#endif
