/* What processes share by clone(2) without being threads: the descriptor table, root and working directory. */
#ifndef TCLONE_SHARING_H
#define TCLONE_SHARING_H

#include "world.h"

/* Find out, of a frozen world, who shares what with its parent (process->files_group, process->shares_fs); refuse what cannot be shared again.
 * Memory nobody shares: freeze_whole has seen to that. */
int sharing_read(struct world *world, struct error *err);
/* Do these two, by their host ids, share their memory? -1 when one has ended. */
int sharing_memory(pid_t one, pid_t other);
/* Do these two threads, by their host ids, share root, working directory and umask? True also when one has ended. */
bool sharing_directories(pid_t one, pid_t other);
/* Do they share their descriptor table? True also when one has ended. */
bool sharing_descriptors(pid_t one, pid_t other);
/* How many processes share this one's descriptor table, itself included; 1 = it has its own. */
int sharing_group_size(const struct process *process);

#endif
