/* What a livefork that was killed while its batches ran has left in the source. */
#ifndef TCLONE_TIDY_H
#define TCLONE_TIDY_H

#include <sys/types.h>

#include "error.h"

/*
 * Give every thread below source_pid that still runs what it was asked back what it had, and unmap the scratch memory. Freezes the source for
 * as long as that takes.
 */
int tidy(pid_t source_pid, struct error *err);

#endif
