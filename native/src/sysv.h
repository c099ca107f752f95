/* SysV shared memory segments, as a kind of shared object (shared.h). */
#ifndef TCLONE_SYSV_H
#define TCLONE_SYSV_H

#include "shared.h"

/* The segments of the source's IPC namespace, attached or not. */
int sysv_read(struct world *world, struct error *err);
/* In a branch: make them, attached to this program so that it can fill them. */
int sysv_make(struct world *world, struct branch *branch, struct error *err);
/* Copy the content; returns bytes. Thread-safe. */
int64_t sysv_fill(const struct shared_object *object, char *to);
/* Let go of them, and mark removed what was. */
int sysv_finish(struct world *world, struct branch *branch, struct error *err);

#endif
