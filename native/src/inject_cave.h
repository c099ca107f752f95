/* Between inject.c and inject_cave.c. */
#ifndef TCLONE_INJECT_CAVE_H
#define TCLONE_INJECT_CAVE_H

#include "op.h"
#include "world.h"

#define ALL_SIGNALS (~0ull)

struct resume_frame resume_frame_of(const struct thread *thread);
/* Write the cave into the leader's vdso. */
int write_cave(const struct process *process, struct error *err);
/* Is this stop a SIGSTOP's, which a thread meets as soon as it runs? Then it is kept back, to be sent again by return_stops. */
bool withholds_stop(int status, bool *withheld);
void return_stops(struct process *process);
/* One syscall of the leader from the cave; registers and mask are put back whatever happens. */
int cave_syscall(struct process *process, long number, const uint64_t args[6], long *result, struct error *err);

#endif
