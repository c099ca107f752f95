/* Before anything stops: find what cannot be forked, and name it. */
#ifndef TCLONE_PREFLIGHT_H
#define TCLONE_PREFLIGHT_H

#include "world.h"

struct blockers {
    char **messages;
    int count;
};

/* Look through the running processes below source_pid. Returns -1 only when the source cannot be read at all. */
int preflight(pid_t source_pid, const struct options *options, struct blockers *blockers, struct error *err);

#endif
