/* Before anything stops: find what cannot be forked, and name it. */
#ifndef TCLONE_PREFLIGHT_H
#define TCLONE_PREFLIGHT_H

#include "blockers.h"

struct findings {
    struct blockers blockers, warnings;
    int processes;
};

/*
 * Look through the running processes below source_pid. Returns -1 only when the source cannot be read at all.
 * `thorough` (the doctor, which nobody waits for) also reads every memory map and compares the ends of TCP connections.
 */
int preflight(pid_t source_pid, const struct options *options, bool thorough, struct findings *findings, struct error *err);

#endif
