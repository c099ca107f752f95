/* Everything that is read from the frozen source. */
#ifndef TCLONE_CAPTURE_H
#define TCLONE_CAPTURE_H

#include "descriptors.h"
#include "world.h"

int capture(struct world *world, struct error *err);

#endif
