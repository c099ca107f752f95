/* The batch that turns a bare process of the branch into its counterpart in the source. */
#ifndef TCLONE_PROCESS_BATCH_H
#define TCLONE_PROCESS_BATCH_H

#include "rebuild.h"

/* Decide what files the batches need (executables). */
int process_batches_prepare(struct world *world, struct error *err);
/* Address of the placed batch, 0 on failure. */
uint64_t process_batch(struct compiled *compiled, struct process *process, struct error *err);

/*
 * In a branch the first thread forks all children; when it ends there as it did in the source, those with a death signal (PR_SET_PDEATHSIG) would get it. So
 * they ask for that when the thread has gone: by this futex word, which livefork sets (rebuild_await_leaders).
 */
bool process_leader_is_awaited(const struct process *process);
uint64_t process_leader_gone(struct plan *plan, const struct process *process);
/* Ops that go to the process's working directory. */
void process_emit_working_directory(struct batch *batch, const struct process *process);

#endif
