/* Cgroups made inside a workspace: their trees, their settings, and who is in which. */
#ifndef TCLONE_CGROUPS_H
#define TCLONE_CGROUPS_H

#include "blockers.h"
#include "branch.h"

/* ---- before the freeze ---- */

/* Take note when the process is in a group that was made inside. `first` is pid 1; call it for that one first. */
void cgroups_preflight(const struct process *process, const struct process *first, struct blockers *blockers);
/* Refuse what could not be made again. */
void cgroups_check(struct blockers *blockers);
/* The workspace shows its groups somewhere, so they are looked at. `first`: the host's id of pid 1. */
void cgroups_note(pid_t first);
/* See cgroups as this process does, with its group as their root. Returns the way back for cgroups_leave, or -1. */
int cgroups_enter(pid_t pid, struct error *err);
void cgroups_leave(int back);

/* ---- capture ---- */

/* Sets thread->cgroups. Nothing is read while nobody has made groups. */
int cgroups_read(struct world *world, struct error *err);
/* Parse text of the form of /proc/PID/cgroup for it (exposed for the fuzzer). */
int cgroups_parse(struct thread *thread, char *text, struct error *err);

/* ---- in a branch ---- */

/* Make the groups, before anything is opened in them. */
int cgroups_make(struct branch *branch, struct error *err);
/* Put a thread of the branch, by the host's id, where its counterpart is. */
int cgroups_place(const struct branch *branch, const struct thread *thread, pid_t tid, struct error *err);
/* When everybody is in place: a group of the v2 tree that has processes of its own can hand no controllers on. */
int cgroups_finish(const struct branch *branch, struct error *err);

#endif
