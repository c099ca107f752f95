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
/* One syscall of a process's leader from the cave. `status` is 0 when it was made. */
struct cave_call {
    struct process *process;
    long number;
    uint64_t args[6];
    long result;
    int status;
};
/* Make them all, those of different processes at once; registers and masks are put back whatever happens. -1 if one was not made. */
int cave_calls(struct cave_call *calls, int count, struct error *err);

#endif
