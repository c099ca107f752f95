/* Stop every thread of the source without a trace in its signal state, and let it go again. */
#ifndef TCLONE_FREEZE_H
#define TCLONE_FREEZE_H

#include "world.h"

/* Find and stop the whole process tree below world->source_pid. On failure what was stopped is let go. */
int freeze(struct world *world, struct error *err);
/* Stop everything anew as long as parts of it were caught in a state that passes by itself; for at most FREEZE_PATIENCE_NS. Else as freeze. */
int freeze_whole(struct world *world, struct error *err);
/* A step failed while the source stood still: if that was since one of its processes was ended from outside, say so in `err`, by the code "busy". */
void freeze_blame(const struct world *world, struct error *err);
/* Let every stopped thread of the source run again. Idempotent. */
void thaw(struct world *world);
/*
 * Is the tracee in a stop that PTRACE_INTERRUPT or job control caused? Waits for it; -1 when it is gone or `deadline` (monotonic ns) passed.
 * *stop_signal: by which signal job control stopped it, 0 = it did not.
 */
int wait_for_stop(pid_t tid, int *stop_signal, uint64_t deadline);
uint64_t monotonic_ns(void);

#define FREEZE_PATIENCE_NS (3ull * 1000 * 1000 * 1000)
#define FREEZE_TIMEOUT_NS (5ull * 1000 * 1000 * 1000)
#define MAX_PROCESSES 4096
#define MAX_THREADS_PER_PROCESS 32768

#endif
