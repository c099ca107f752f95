/* Nested namespaces as tclone-restore needs them. */
#ifndef TCLONE_NAMESPACE_PLAN_H
#define TCLONE_NAMESPACE_PLAN_H

#include "arena.h"
#include "namespaces.h"

/* First: slots, and what each namespace shall hold. highest_pid = the highest in use in the workspace's own pid namespace. */
int namespace_plan_begin(struct plan *plan, int highest_pid, struct error *err);
/* Last: lay the tables out in the arena. */
int namespace_plan_place(struct plan *plan, struct arena_control *control, struct error *err);

/* Numbers as clone3 wants them, innermost first; returns how many. A count of 0 asks for unused ones in `where` and those around it. */
int nest_numbers(struct namespace *where, const struct pid_numbers *numbers, int32_t pids[ARENA_PID_LEVELS]);
/* The nest of a node that is not a process, but lives in the pid namespace `where`. */
uint64_t nest_of_helper(struct plan *plan, struct namespace *where, const struct pid_numbers *numbers);
uint64_t nest_of_process(struct plan *plan, const struct process *process, struct error *err);
/* Must the child be forked before its parent enters nested namespaces? */
bool nest_before_parent(const struct process *child);

/*
 * A clone inside a process's own batch with these numbers (count 0: any): fills set_tid and set_tid_size of the clone3 arguments, and emits the wait
 * for a ticket where the process may not choose all of them. After the clone nest_clone_done.
 */
struct clone_args;
struct nest_clone { bool ticket; };
struct nest_clone nest_clone(struct batch *batch, const struct process *process, const struct pid_numbers *numbers, struct clone_args *args);
void nest_clone_done(struct batch *batch, struct nest_clone clone);

/* Around the making of a socket of the network namespace `net`: nothing is emitted if it is the workspace's own. */
void namespace_enter_net(struct batch *batch, const struct namespace *net);
void namespace_leave_net(struct batch *batch, const struct namespace *net);
/* The network namespace of a socket; NULL = the workspace's own. */
int namespace_of_socket(struct world *world, int socket, const struct namespace **net, struct error *err);
/*
 * The same for a unix socket. One that was accepted belongs to the namespace of who connected, maybe the host's: one that cannot be made again and in
 * which nobody of the workspace lives counts as the workspace's own, since a unix socket needs its namespace for abstract names alone.
 */
int namespace_of_unix_socket(struct world *world, int socket, const struct namespace **net, struct error *err);

#endif
