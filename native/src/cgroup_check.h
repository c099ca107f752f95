/* Cgroups made inside a workspace are refused. */
#ifndef TCLONE_CGROUP_CHECK_H
#define TCLONE_CGROUP_CHECK_H

#include "blockers.h"

/* `first` is pid 1, whose group is the workspace's. */
void cgroups_preflight(const struct process *process, const struct process *first, struct blockers *blockers);

#endif
