/* The order in which a branch's processes are forked, so that each ends up in the right session and group under the right parent. */
#ifndef TCLONE_TREE_H
#define TCLONE_TREE_H

#include "arena.h"
#include "plan.h"

/* Lay the nodes out in the arena and fill control's nodes, node_count, array_length. The batches of processes are filled in later. */
int tree_plan(struct plan *plan, struct arena_control *control, struct error *err);

/* The highest id that a process, thread, group or session of the workspace has. */
int tree_last_pid(const struct world *world);

#endif
