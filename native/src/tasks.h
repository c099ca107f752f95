/* Ids, registers and other state of processes and threads that the kernel tells from outside. */
#ifndef TCLONE_TASKS_H
#define TCLONE_TASKS_H

#include "query.h"
#include "world.h"

#define CODE_SEGMENT_64 0x33   /* cs of a thread that runs 64-bit code */

/* Registers, extended state, signal masks, ids, links of every process; the source is frozen. */
int tasks_read(struct world *world, struct error *err);
/* Before the freeze: look whether this process's parent gets something else than SIGCHLD at its end. */
void tasks_note_exit_signal(pid_t pid);
/* Field `number` of the text of /proc/PID/stat, counted as proc(5) does from 1; 0 = it is not there. */
long tasks_stat_field(const char *text, int number);
/* The core's own questions: thread id, clear_tid address, close-on-exec flags. */
extern const struct part part_core;

#endif
