/*
 * The process that the engine started, and may kill at any moment, only waits; the work is done by a child of it, which dies with it unless it is in the
 * middle of something that would harm the source if it were left half done. Then it dies right after that. If the child is killed itself, the one that waits
 * sees to the source (rescue.h).
 */
#ifndef TCLONE_SHIELD_H
#define TCLONE_SHIELD_H

#include <sys/types.h>

/*
 * Returns in the child; the caller's process ends as that one does. It costs 0.1 ms, so it is for forks alone. Before any thread and any descriptor is made.
 * `source`: the first process of what is forked.
 */
void shield_start(pid_t source);
/* What lies between these two is short, bounded, and waits for nobody outside livefork and the source. They do not nest, and do nothing without a start. */
void shield_raise(void);
void shield_lower(void);
/* For tests that kill the first process at exactly this place: `name` is what TCLONE_LIVEFORK_KILL_AT says; "worker:" before it: the child instead. */
void shield_kill_if_asked(const char *name);

#endif
