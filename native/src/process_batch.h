/* The batch that turns a bare process of the branch into its counterpart in the source. */
#ifndef TCLONE_PROCESS_BATCH_H
#define TCLONE_PROCESS_BATCH_H

#include "rebuild.h"

/* Decide what files the batches need (executables). */
int process_batches_prepare(struct world *world, struct error *err);
/* Address of the placed batch, 0 on failure. */
uint64_t process_batch(struct compiled *compiled, struct process *process, struct error *err);

/* Ops that go to the process's working directory. */
void process_emit_working_directory(struct batch *batch, const struct process *process);

#endif
