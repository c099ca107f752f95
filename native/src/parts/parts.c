/*
 * Every part, in the order in which a branch's thread sets it up. What needs privilege comes before the credentials; what a change of
 * credentials resets (dumpable, death signal) after them; seccomp last, since from then on most calls may be refused.
 */
#include "parts.h"
#include "../tasks.h"

const struct part *const parts[] = {
    &part_core,
    &part_name,
    &part_signal_actions,
    &part_alt_stack,
    &part_inotify_overflow,
    &part_fanotify_overflow,
    &part_attributes,
    &part_interval_timers,
    &part_posix_timers,
    &part_pending_signals,      /* after the actions: setting one to ignore would discard them */
    &part_semaphore_undo,
    &part_process,
    &part_keys,
    &part_next_pid,
    &part_aio,
    &part_switches,
    &part_root,
    &part_place,
    &part_landlock,
    &part_limits,               /* after all that open files or queue signals: a program may have as many as its limits allow */
    &part_credentials,
    &part_after_credentials,
    &part_seccomp,
    NULL,
};

struct process_state *process_state(struct process *process)
{
    if (!process->state)
        process->state = must_alloc(sizeof *process->state);
    return process->state;
}
