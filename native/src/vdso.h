/* The vdso and its data ([vvar] …): the kernel maps them side by side, a program can move or unmap each. */
#ifndef TCLONE_VDSO_H
#define TCLONE_VDSO_H

#include "memory.h"
#include "plan.h"

/* Ops that map them where the process has them; everything else but the arena is still unmapped. */
int vdso_emit(struct batch *batch, const struct process *process, const char *label, struct error *err);

#endif
