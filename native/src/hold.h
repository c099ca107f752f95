/* A workspace held still by the freezer of cgroups, for the moment in which its tracer changes. */
#ifndef TCLONE_HOLD_H
#define TCLONE_HOLD_H

#include <sys/types.h>

/*
 * From here on no process in the workspace's group runs a step of its program, also when whoever traces it ends; one that is traced still stops for its
 * tracer. -1 where there is no such group, or it was held before.
 */
int hold_begin(pid_t first);
/* Let them run; also what somebody who was killed meanwhile has held. */
void hold_end(pid_t first);

#endif
