/* Work in the source that must not be left half done. */
#ifndef TCLONE_APART_H
#define TCLONE_APART_H

#include "error.h"

/*
 * Call `work` in a process that shares memory and descriptors with this one, but does not die with it, and wait for it. It must be short and must not
 * wait for anything. `work` returns 0, or 1 with its own error filled in.
 */
int apart_run(int (*work)(void *), void *argument, struct error *err);

#endif
