/* The proof that a branch works: a command that really runs inside it. */
#ifndef TCLONE_PROBE_H
#define TCLONE_PROBE_H

#include "branch.h"

/* Run tclone-init --version in the branch's namespaces and wait for its success. */
int probe_branch(struct branch *branch, struct error *err);

#endif
