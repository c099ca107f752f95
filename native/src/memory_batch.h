/* The ops that make a process's memory map in a branch, and, once it is filled, what its mappings are beyond their content. */
#ifndef TCLONE_MEMORY_BATCH_H
#define TCLONE_MEMORY_BATCH_H

#include "files.h"
#include "memory.h"
#include "plan.h"

/* Before any batch is compiled: auxiliary slots. */
void memory_batch_prepare(struct process *process);
/* All mappings at their places, ready to be filled. `label` names the process in errors. */
int memory_emit_maps(struct batch *batch, const struct process *process, const char *label, const struct file_opening *executable,
                     struct error *err);
/* When they are filled: final protection, guard pages, advice, locks, seals. */
void memory_emit_attributes(struct batch *batch, const struct process *process, const char *label);

#endif
