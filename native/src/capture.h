/* Everything that is read from the frozen source. */
#ifndef TCLONE_CAPTURE_H
#define TCLONE_CAPTURE_H

#include "descriptors.h"
#include "world.h"

int capture(struct world *world, struct error *err);
/* Which pages hold private data. Apart from the rest because it can run while the branches build their processes. */
int capture_pages(struct world *world, struct error *err);

#endif
