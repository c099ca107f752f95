/* What is done for the source when the process that traces it is killed. */
#ifndef TCLONE_RESCUE_H
#define TCLONE_RESCUE_H

#include <sys/types.h>

/*
 * `worker` has been killed and stands at its end, traced by the caller; what it traces still stands still. Lets it end, and puts the processes below `source`
 * back to where they were before any of them takes a step. Returns the worker's wait status.
 */
int rescue(pid_t worker, pid_t source);

#endif
