/* Asynchronous I/O contexts (io_setup): memory that the kernel and a process share, a ring of what has been done. Its address is the context's id. */
#ifndef TCLONE_AIO_H
#define TCLONE_AIO_H

#include "memory.h"
#include "plan.h"

/* Is this mapping, named like one, a ring? Notes the process for aio_settle. */
bool aio_is_ring(const struct process *process, uint64_t start, uint64_t end, const char *name);
/* Refuse a ring with requests that wait for something: they end when it comes, not by themselves. */
int aio_check(const struct process *process, const struct vma *vma, struct error *err);
/* After the freeze, before anything is copied: give requests that are under way a bounded time to end, so that what they do to files is copied with these. */
int aio_settle(const struct world *world, struct error *err);
/* Take the place of a ring, of which no other mapping may get a part. */
void aio_reserve(struct batch *batch, const struct vma *vma, const char *label);
/* Make the contexts of a process, once all its other mappings are there. */
void aio_emit(struct batch *batch, const struct process *process, const char *label);

#endif
