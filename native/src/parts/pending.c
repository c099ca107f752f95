/*
 * Pending signals with their siginfo. They can only be queued again from inside: the kernel lets nobody but the receiver itself send a
 * signal that looks as if the kernel or another process had sent it. All signals are blocked while the batch runs.
 */
#include "parts.h"
#include "../namespaces.h"

#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#ifndef PTRACE_PEEKSIGINFO
#define PTRACE_PEEKSIGINFO 0x4209
#endif
#define SHARED_QUEUE 1          /* PTRACE_PEEKSIGINFO_SHARED */
#define PEEK_AT_ONCE 1024
/* The kernel walks the queue from its start for each signal it shows: 8 192 take 0.3 s, 65 536 took 17. */
#define PENDING_LIMIT 8192

struct peek_arguments {
    uint64_t offset;
    uint32_t flags;
    int32_t count;
};

/* Asked before they are read. */
static bool has_too_many(pid_t tid, uint32_t flags)
{
    siginfo_t one;
    struct peek_arguments arguments = { .offset = PENDING_LIMIT, .flags = flags, .count = 1 };
    return ptrace(PTRACE_PEEKSIGINFO, tid, &arguments, &one) > 0;
}

static int read_queue(const struct thread *thread, uint32_t flags, siginfo_t **list, int *count, struct error *err)
{
    siginfo_t some[PEEK_AT_ONCE];
    for (;;) {
        struct peek_arguments arguments = { .offset = (uint64_t)*count, .flags = flags, .count = PEEK_AT_ONCE };
        long got = ptrace(PTRACE_PEEKSIGINFO, thread->tid, &arguments, some);
        if (got < 0)
            return fail_errno(err, "%s: cannot read its pending signals", process_label(thread->process));
        if (got == 0)
            return 0;
        if (got == PEEK_AT_ONCE && *count == 0 && has_too_many(thread->tid, flags))
            return fail(err, "limit", "%s has more than %d pending signals; let it take some", process_label(thread->process), PENDING_LIMIT);
        *list = must_grow(*list, (size_t)(*count + got) * sizeof **list);
        memcpy(*list + *count, some, (size_t)got * sizeof **list);
        *count += (int)got;
        if (got < PEEK_AT_ONCE)
            return 0;
    }
}

/* The tracer asks, not the task itself. */
static int pending_collect(struct query *query, void *memo, struct error *err)
{
    (void)memo;
    struct thread *thread = query_thread(query);
    struct pending_signals *pending = thread->pending = must_alloc(sizeof *pending);
    if (read_queue(thread, 0, &pending->list, &pending->count, err) < 0)
        return -1;
    if (!query_is_leader(query))
        return 0;
    struct process_state *state = process_state(thread->process);
    int status = read_queue(thread, SHARED_QUEUE, &state->pending, &state->pending_count, err);
    clock_gettime(CLOCK_MONOTONIC, &state->pending_read);
    return status;
}

/* It stops the process as soon as it is queued: release.c does that last. */
static bool is_stop(const siginfo_t *info)
{
    return info->si_signo == SIGSTOP;
}

static int pending_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    struct plan *plan = batch->plan;
    if (thread == &process->threads[0]) {
        const struct process_state *state = process->state;
        for (int i = 0; i < state->pending_count; i++) {
            const siginfo_t *info = &state->pending[i];
            if (is_stop(info))
                continue;
            EMIT(batch, "pending signal", SYS_rt_sigqueueinfo, (uint64_t)inner_tid(thread), (uint64_t)info->si_signo,
                 plan_data(plan, info, sizeof *info));
        }
    }
    for (int i = 0; i < thread->pending->count; i++) {
        const siginfo_t *info = &thread->pending->list[i];
        if (is_stop(info))
            continue;
        EMIT(batch, "pending signal", SYS_rt_tgsigqueueinfo, (uint64_t)inner_pid(process), (uint64_t)inner_tid(thread), (uint64_t)info->si_signo,
             plan_data(plan, info, sizeof *info));
    }
    return 0;
}

const struct part part_pending_signals = { .name = "pending signals", .collect = pending_collect, .emit = pending_emit };
