/* Copy memory from the frozen source into its branches. */
#ifndef TCLONE_COPY_H
#define TCLONE_COPY_H

#include "rebuild.h"

/* Fill every live branch (err.code unset) with private pages and shared objects; opens each process's gate as soon as its memory is complete.
 * Returns the bytes copied into one branch, or -1 when the source cannot be read. A branch that cannot be written gets its own error. */
int64_t copy_memory(struct world *world, const struct compiled *compiled, struct branch *branches, int branch_count, struct error *err);

#endif
