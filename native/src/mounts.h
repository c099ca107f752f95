/* Mounts made inside a workspace: what can be forked, what is refused. */
#ifndef TCLONE_MOUNTS_H
#define TCLONE_MOUNTS_H

#include <stdbool.h>

#include "blockers.h"
#include "world.h"

/* Before the freeze: the mounts that the process sees (each mount namespace once) and the places it uses. */
void mounts_preflight(const struct process *process, struct blockers *blockers);
/*
 * Is descriptor `fd` a file of a FUSE server? Then it is refused and must not be touched any further: looking at such a file, or even closing a
 * duplicate of its descriptor, waits for a server that may never answer.
 */
bool mounts_refuse_fuse(const struct process *process, int fd, const char *link, struct blockers *blockers);

#endif
