/*
 * pidfds, of processes of this world (alive or zombies): made once the process tree exists; and of ones that have ended and been reaped: a
 * short-lived process makes one of itself.
 */
#include "kinds.h"
#include "../descriptors.h"
#include "../proc.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define FDINFO_LIMIT 4096
#define STATUS_LIMIT (1u << 20)
#define PIDFD_THREAD_FLAG O_EXCL    /* PIDFD_THREAD, which older headers lack */

struct pidfd_state {
    int ns_pid;                 /* 0 = it has ended and been reaped */
    int flags;
    struct batch *creator;      /* of one that has ended, while a branch is planned */
};

static bool pidfd_match(const struct description *description)
{
    return strcmp(description->link, "anon_inode:[pidfd]") == 0 || strncmp(description->link, "pidfd:[", 7) == 0;
}

/* The workspace's number of a process or thread whose host number is given; 0 = not one of ours. */
static int ns_of_host(const struct world *world, int host, bool *is_thread)
{
    *is_thread = false;
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        if (process->group_leader == host)
            return process->ns_pid;
        for (int k = 1; k < process->thread_count; k++) {
            if (process->threads[k].tid == host) {
                *is_thread = true;
                return process->threads[k].ns_tid;
            }
        }
    }
    return 0;
}

static int pidfd_capture(struct world *world, struct description *description, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, FDINFO_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
    if (!text)
        return -1;
    const char *field = proc_field(text, "Pid");
    if (!field)
        return fail(err, "internal", "%s: the kernel does not tell its process", description_label(description));
    struct pidfd_state *state = description->data = must_alloc(sizeof *state);
    state->flags = description->flags & (O_NONBLOCK | PIDFD_THREAD_FLAG);
    int host = atoi(field);
    if (host < 0)
        return 0;
    bool is_thread;
    state->ns_pid = ns_of_host(world, host, &is_thread);
    if (!state->ns_pid)
        return fail(err, "unsupported", "%s refers to process %d of the host, outside the workspace; close it", description_label(description),
                    host);
    if (is_thread)
        return fail(err, "unsupported", "%s refers to thread %d of a process, which cannot be forked yet; close it",
                    description_label(description), state->ns_pid);
    return 0;
}

/* A thread of the world is made long after its descriptors. The first thread is as good as its process. */
static int pidfd_check(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    struct error ignored = { 0 };
    AUTO_FREE char *text = proc_read(&ignored, FDINFO_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
    const char *field = text ? proc_field(text, "Pid") : NULL;
    int host = field ? atoi(field) : -1;
    if (host <= 0 || !(description->flags & PIDFD_THREAD_FLAG))
        return 0;
    AUTO_FREE char *status = proc_read(&ignored, STATUS_LIMIT, NULL, "/proc/%d/status", host);
    const char *group = status ? proc_field(status, "Tgid") : NULL;
    if (group && atoi(group) != host)
        return fail(err, "unsupported", "%s refers to a single thread of a process, which cannot be forked yet; close it",
                    description_label(description));
    return 0;
}

/* Descriptors of one dead process are told by their inode to be so: one short-lived process for each inode. */
static struct batch *creator_of_dead(struct plan *plan, const struct description *description)
{
    const struct world *world = plan->world;
    struct pidfd_state *state = description->data;
    for (int i = 0; i < description->index && !state->creator; i++) {
        const struct description *other = world->descriptions[i];
        if (other->kind == &kind_pidfd && other->st.st_ino == description->st.st_ino)
            state->creator = ((const struct pidfd_state *)other->data)->creator;
    }
    if (!state->creator)
        state->creator = plan_fresh_creator(plan, STAGE_MAKE, 0, 0, 0);
    return state->creator;
}

static int pidfd_emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    const struct pidfd_state *state = description->data;
    const char *what = description_label(description);
    if (state->ns_pid) {
        struct batch *batch = plan_late(plan);
        EMIT(batch, what, SYS_pidfd_open, (uint64_t)state->ns_pid, (uint64_t)state->flags);
        emit_to_slot(batch, description, what);
        return 0;
    }
    struct batch *batch = creator_of_dead(plan, description);
    EMIT(batch, what, SYS_getpid);
    uint64_t self = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_pidfd_open, self, (uint64_t)state->flags);
    emit_to_slot(batch, description, what);
    return 0;
}

const struct fd_kind kind_pidfd = {
    .name = "pidfd",
    .match = pidfd_match,
    .capture = pidfd_capture,
    .emit = pidfd_emit,
    .check = pidfd_check,
};
