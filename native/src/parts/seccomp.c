/*
 * Seccomp. Filters are read by the tracer, oldest first. The first ones of every thread are those of the container runtime, which pid 1 has:
 * a branch's restorer was started under the same ones, so they are there already.
 *
 * A filter is installed last of all, unless the thread has neither no_new_privs nor CAP_SYS_ADMIN: then just before it gives that up.
 */
#include "parts.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#ifndef PTRACE_SECCOMP_GET_FILTER
#define PTRACE_SECCOMP_GET_FILTER 0x420c
#endif
#ifndef PTRACE_SECCOMP_GET_METADATA
#define PTRACE_SECCOMP_GET_METADATA 0x420d
#endif
#define MAX_FILTERS 64
#define INSTRUCTION_SIZE 8

struct metadata { uint64_t filter_offset, flags; };

struct seccomp_memo {
    int mode_op;
};

static int seccomp_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    struct seccomp_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->mode_op = ASK(query, SYS_prctl, PR_GET_SECCOMP);
    return 0;
}

/* Length of a thread's filter, 0 past the last one. */
static long filter_length(const struct thread *thread, int index, struct error *err)
{
    long length = ptrace(PTRACE_SECCOMP_GET_FILTER, thread->tid, (unsigned long)index, NULL);
    if (length < 0 && (errno == ENOENT || errno == EINVAL))
        return 0;
    if (length < 0)
        return fail_errno(err, "%s: cannot read its seccomp filter %d", process_label(thread->process), index);
    return length;
}

static int read_filter(struct thread *thread, int index, long length, struct error *err)
{
    struct filter *filter = must_alloc(sizeof *filter);
    filter->length = (uint16_t)length;
    filter->instructions = must_alloc((size_t)length * INSTRUCTION_SIZE);
    if (ptrace(PTRACE_SECCOMP_GET_FILTER, thread->tid, (unsigned long)index, filter->instructions) != length)
        return fail_errno(err, "%s: cannot read its seccomp filter %d", process_label(thread->process), index);
    struct metadata metadata = { .filter_offset = (uint64_t)index };
    if (ptrace(PTRACE_SECCOMP_GET_METADATA, thread->tid, sizeof metadata, &metadata) > 0)
        filter->flags = (uint32_t)metadata.flags;
    struct filter **link = &thread->filters;
    while (*link)
        link = &(*link)->next;
    *link = filter;
    return 0;
}

/* How many filters the container runtime installed: all that pid 1 has. Its own query is collected first. */
static int base_filters;

static int seccomp_collect(struct query *query, void *memo, struct error *err)
{
    const struct seccomp_memo *mine = memo;
    struct thread *thread = query_thread(query);
    thread->seccomp_mode = (int)query_result(query, mine->mode_op);
    if (thread->seccomp_mode != SECCOMP_MODE_FILTER)
        return 0;
    bool first = thread->process->index == 0 && query_is_leader(query);
    int index = first ? 0 : base_filters;
    for (;; index++) {
        long length = filter_length(thread, index, err);
        if (length < 0)
            return -1;
        if (length == 0)
            break;
        if (index == MAX_FILTERS)
            return fail(err, "limit", "%s has more than %d seccomp filters", process_label(thread->process), MAX_FILTERS);
        if (!first && read_filter(thread, index, length, err) < 0)
            return -1;
    }
    thread->seccomp_filters = index;
    if (first)
        base_filters = index;
    return 0;
}

static bool may_filter_at_the_end(const struct thread *thread)
{
    return thread->credentials.no_new_privs || thread->credentials.effective >> CAP_SYS_ADMIN & 1;
}

/* The threads of a process mostly have the same filters: keep one copy of each in the arena. */
static uint64_t place_instructions(struct plan *plan, const struct filter *filter)
{
    static const struct filter *last;
    static uint64_t last_address;
    size_t size = (size_t)filter->length * INSTRUCTION_SIZE;
    if (!last || last->length != filter->length || memcmp(last->instructions, filter->instructions, size) != 0) {
        last = filter;
        last_address = plan_data(plan, filter->instructions, size);
    }
    return last_address;
}

static bool same_filters(const struct thread *a, const struct thread *b)
{
    const struct filter *left = a->filters, *right = b->filters;
    for (; left && right; left = left->next, right = right->next)
        if (left->flags != right->flags || left->length != right->length
            || memcmp(left->instructions, right->instructions, (size_t)left->length * INSTRUCTION_SIZE) != 0)
            return false;
    return !left && !right && a->credentials.no_new_privs == b->credentials.no_new_privs;
}

/*
 * Threads that have the same filters have the same objects, mostly: filters are inherited. It shows when one of them installs a further filter for all
 * (TSYNC), which the kernel refuses when theirs are not its own. So the leader, which comes last, installs them for all.
 */
static bool filters_are_shared(const struct process *process)
{
    for (int i = 1; i < process->thread_count; i++)
        if (!same_filters(&process->threads[0], &process->threads[i]))
            return false;
    return process->thread_count > 1;
}

static void emit_filters(struct batch *batch, const struct thread *thread)
{
    bool shared = filters_are_shared(thread->process);
    if (shared && thread != &thread->process->threads[0])
        return;
    for (const struct filter *filter = thread->filters; filter; filter = filter->next) {
        struct { uint64_t length, instructions; } program = { filter->length, place_instructions(batch->plan, filter) };
        EMIT(batch, "seccomp filter", SYS_seccomp, SECCOMP_SET_MODE_FILTER, filter->flags | (shared ? SECCOMP_FILTER_FLAG_TSYNC : 0),
             plan_data(batch->plan, &program, sizeof program));
    }
}

void seccomp_emit_privileged(struct batch *batch, const struct thread *thread)
{
    if (!may_filter_at_the_end(thread))
        emit_filters(batch, thread);
}

static int seccomp_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    if (may_filter_at_the_end(thread))
        emit_filters(batch, thread);
    if (thread->seccomp_mode == SECCOMP_MODE_STRICT)
        EMIT(batch, "seccomp", SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, 0);
    return 0;
}

const struct part part_seccomp = { .name = "seccomp", .ask = seccomp_ask, .collect = seccomp_collect, .emit = seccomp_emit };
