/* When long relative waits began, which the kernel tells nobody directly. */
#ifndef TCLONE_WAITS_H
#define TCLONE_WAITS_H

#include "world.h"

/* Before the freeze: look whether this thread waits for a relative time that would last its whole time again in a branch. */
void waits_note(pid_t pid, pid_t tid);
/* The thread is frozen: if it is still in the wait that was noted, when that began (CLOCK_MONOTONIC, ns); else 0. */
uint64_t waits_began(const struct thread *thread);

#endif
