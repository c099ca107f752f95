/* Descriptor tables, and the open file descriptions behind them. */
#ifndef TCLONE_DESCRIPTORS_H
#define TCLONE_DESCRIPTORS_H

#include "plan.h"
#include "world.h"

/* The numbers in use by each process (before queries run, which ask for the close-on-exec flags). */
int descriptors_list(struct process *process, struct error *err);
/*
 * Refuse a process that serves a FUSE file system and came to do so since preflight: a duplicate of a file that it serves could not even be closed while it
 * stands still, and whoever waits for that cannot be killed.
 */
int descriptors_refuse_servers(const struct process *process, struct error *err);
/* Duplicate and classify every description; descriptions shared by dup or fork are recognised (kcmp). */
int descriptors_describe(struct world *world, struct error *err);
/*
 * The description behind a descriptor of ours (for example one received with MSG_PEEK from a queue): known already, or added to the world and
 * captured like any other. Takes over local_fd.
 */
struct description *capture_adopt_descriptor(struct world *world, int local_fd, struct error *err);
/* Run every kind's capture (also for descriptions adopted meanwhile), then every kind's link. */
int descriptors_capture(struct world *world, struct error *err);
/* When all is known that a branch opens: refuse what does not fit into its one shared table. */
int descriptors_check_room(const struct world *world, struct error *err);
/* "pid 41 (node) fd 17: eventfd" in a static ring of four. */
const char *description_label(const struct description *description);

#define MAX_DESCRIPTORS 65536

#endif
