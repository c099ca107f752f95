/* File locks: POSIX record locks of processes, flock and OFD locks and leases of open files. */
#ifndef TCLONE_LOCKS_H
#define TCLONE_LOCKS_H

#include "plan.h"

/* Read the locks on files of the frozen source. */
int locks_read(struct world *world, struct error *err);
/* Take them again in a branch. Its files are its own, so nobody else can be in the way. */
void locks_emit(struct plan *plan);
/* The whole-file locks (flock) that the process took itself: by the common table, since it may have closed or passed on its descriptor since. */
void locks_emit_taken(struct batch *batch, const struct process *process);
/*
 * Only who owns a file may take a lease on it: a process in a nested user namespace, where no capability helps, once it has its ids. Everybody else
 * has taken them before.
 */
void locks_emit_late_leases(struct batch *batch, const struct process *process);

#endif
