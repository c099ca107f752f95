/* `tclone-init --watch`: says what happens in a directory, to whoever reads its output. */
#ifndef TCLONE_WATCH_H
#define TCLONE_WATCH_H

#include <stdbool.h>

/*
 * Watch a directory, `below`: with all directories in it, also those to come, but none behind a symbolic link. Each event is a letter, the path below
 * the directory ("." for itself) and a NUL: S it watches from now on (path "."), C created or moved to there, W written to, R removed, N renamed or
 * moved away, A attributes. What lies in a directory that has just come may be told twice. Returns the exit status when the directory is gone, when
 * it cannot be watched, or when events were lost; says why on standard error.
 */
int watch(const char *directory, bool below);

#endif
