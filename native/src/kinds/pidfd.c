/*
 * pidfds, of processes of this world (alive or zombies): made once the process tree exists; of single threads: made by who has them, once all threads
 * exist; and of ones that have ended and been reaped: a short-lived process makes one of itself.
 */
#include "kinds.h"
#include "../descriptors.h"
#include "../namespaces.h"
#include "../proc.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define FDINFO_LIMIT 4096
#define PIDFD_THREAD_FLAG O_EXCL    /* PIDFD_THREAD, which older headers lack */

struct pidfd_state {
    int ns_pid;                 /* 0 = it has ended and been reaped */
    int flags;
    struct thread *thread;      /* the single one it is of, other than a first one; NULL = none */
    struct batch *creator;      /* of one that has ended, while a branch is planned */
};

static bool pidfd_match(const struct description *description)
{
    return strcmp(description->link, "anon_inode:[pidfd]") == 0 || strncmp(description->link, "pidfd:[", 7) == 0;
}

/* The workspace's number of the process whose number on the host, or that of a thread of it, is given; 0 = not one of ours. */
static int ns_of_host(const struct world *world, int host, struct thread **thread)
{
    *thread = NULL;
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        if (process->group_leader == host)
            return process->ns_pid;
        for (int k = 0; k < process->thread_count; k++) {
            if (process->threads[k].tid == host) {
                *thread = &process->threads[k];
                return process->ns_pid;
            }
        }
    }
    return 0;
}

/* The thread's number where the process lives; 0 = it is not seen from there. */
static int number_for(const struct process *process, const struct thread *thread)
{
    const struct namespace *seen_from = process->namespaces[NAMESPACE_PID], *lives = thread->process->namespaces[NAMESPACE_PID];
    if (!namespace_contains(seen_from, lives))
        return 0;
    return thread->tids.count ? thread->tids.at[seen_from->level] : thread->ns_tid;
}

/* Its first thread, and with that the process's number, having ended, the thread is started last of all. */
static int check_thread(struct world *world, const struct description *description, struct thread *thread, struct error *err)
{
    const char *why = !description->holder ? "is on its way through a socket" : thread->process->leader_ended ? "outlives the first one" : NULL;
    for (int i = 0; i < world->process_count && !why; i++) {
        const struct process *process = world->processes[i];
        for (int k = 0; k < process->fd_count && !why; k++)
            if (process->fds[k].description == description && number_for(process, thread) == 0)
                why = "lives outside the pid namespace of who has it open";
    }
    if (why)
        return fail(err, "unsupported", "%s refers to the single thread %d of %s and %s, which cannot be forked; close it", description_label(description),
                    inner_tid(thread), process_label(thread->process), why);
    thread->process->threads_awaited = true;
    return 0;
}

bool pidfd_is_of_thread(const struct description *description)
{
    return description->kind == &kind_pidfd && ((const struct pidfd_state *)description->data)->thread;
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
    state->ns_pid = ns_of_host(world, host, &state->thread);
    if (!state->ns_pid)
        return fail(err, "unsupported", "%s refers to process %d of the host, outside the workspace; close it", description_label(description),
                    host);
    return state->thread ? check_thread(world, description, state->thread, err) : 0;
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
        EMIT(batch, what, SYS_pidfd_open, (uint64_t)state->ns_pid, (uint64_t)(state->thread ? state->flags & ~PIDFD_THREAD_FLAG : state->flags));
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

/* Futex words, one a process: its threads are there. */
static uint64_t threads_word(struct plan *plan, const struct process *process)
{
    static uint64_t words;
    if (!words)
        words = plan_reserve(plan, (size_t)plan->world->process_count * sizeof(uint32_t));
    return words + (uint64_t)process->index * sizeof(uint32_t);
}

static int first_number(const struct process *process, const struct description *description)
{
    int i = 0;
    while (process->fds[i].description != description)
        i++;
    return process->fds[i].fd;
}

static void emit_of_thread(struct batch *batch, const struct process *process, const struct fd_entry *entry)
{
    const struct pidfd_state *state = entry->description->data;
    const char *what = description_label(entry->description);
    uint64_t close_on_exec = entry->cloexec ? O_CLOEXEC : 0;
    int first = first_number(process, entry->description);
    if (first != entry->fd) {
        EMIT(batch, what, SYS_dup3, (uint64_t)first, (uint64_t)entry->fd, close_on_exec);
        return;
    }
    EMIT(batch, what, OP_WAIT, threads_word(batch->plan, state->thread->process), 1);
    EMIT(batch, what, SYS_pidfd_open, (uint64_t)number_for(process, state->thread), (uint64_t)state->flags);
    uint64_t opened = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_dup3, opened, (uint64_t)entry->fd, close_on_exec);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, opened);
}

void pidfd_emit_of_threads(struct batch *batch, const struct process *process, const char *label)
{
    if (process->threads_awaited)
        EMIT(batch, label, OP_SIGNAL, threads_word(batch->plan, process));
    bool shares_table = process->files_group && process->files_group != process;
    for (int i = 0; i < process->fd_count && !shares_table; i++)
        if (pidfd_is_of_thread(process->fds[i].description))
            emit_of_thread(batch, process, &process->fds[i]);
}

const struct fd_kind kind_pidfd = {
    .name = "pidfd",
    .match = pidfd_match,
    .capture = pidfd_capture,
    .emit = pidfd_emit,
};
