/*
 * Seccomp. Filters are read by the tracer, oldest first. The first ones of every thread are those of the container runtime, which pid 1 has:
 * a branch's restorer was started under the same ones, so they are there already.
 *
 * A filter is installed last of all, by livefork in the stopped thread, whose filters are suspended then: it may kill on any call that a fork makes.
 * If the thread has neither no_new_privs nor CAP_SYS_ADMIN, its batch installs it just before it gives that up; then it must allow what follows.
 */
#include "parts.h"
#include "../filter_verdict.h"
#include "../inject.h"
#include "../interrupted.h"
#include "../memory.h"

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

/* How many filters the container runtime installed: all that pid 1 has. */
static int count_base_filters(const struct world *world, struct error *err)
{
    static int count = -1;
    const struct process *first = world->processes[0];
    if (count >= 0)
        return count;
    int index = 0;
    for (long length = 1; first->thread_count && length > 0; index += length > 0)
        if ((length = filter_length(&first->threads[0], index, err)) < 0)
            return -1;
    return count = index;
}

/* Read what the thread has beyond those, once. */
static int read_own_filters(struct thread *thread, struct error *err)
{
    if (thread->seccomp_filters)
        return 0;
    int index = count_base_filters(thread->process->world, err);
    if (index < 0)
        return -1;
    for (;; index++) {
        long length = filter_length(thread, index, err);
        if (length < 0)
            return -1;
        if (length == 0)
            break;
        if (index == MAX_FILTERS)
            return fail(err, "limit", "%s has more than %d seccomp filters", process_label(thread->process), MAX_FILTERS);
        if (read_filter(thread, index, length, err) < 0)
            return -1;
    }
    thread->seccomp_filters = index;
    return 0;
}

static int seccomp_collect(struct query *query, void *memo, struct error *err)
{
    const struct seccomp_memo *mine = memo;
    struct thread *thread = query_thread(query);
    thread->seccomp_mode = (int)query_result(query, mine->mode_op);
    return thread->seccomp_mode == SECCOMP_MODE_FILTER ? read_own_filters(thread, err) : 0;
}

int seccomp_guard_restart(struct thread *thread, struct user_regs_struct *regs, struct error *err)
{
    if (read_own_filters(thread, err) < 0)
        return -1;
    struct seccomp_data call = filter_call(SYS_restart_syscall);
    if (filter_lets_through(filter_verdict(thread->filters, NULL, &call)))
        return 0;
    regs->rax = (uint64_t)INTERRUPTED_WITHOUT_HANDLER;
    return set_registers(thread->tid, regs, err);
}

/* ---- in a branch ---- */

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

/* Who installs nothing itself, since the leader does it for all. */
static bool is_served(const struct thread *thread)
{
    return thread->filters && thread != &thread->process->threads[0] && filters_are_shared(thread->process);
}

static uint64_t flags_of(const struct thread *thread, const struct filter *filter)
{
    return filter->flags | (filters_are_shared(thread->process) ? SECCOMP_FILTER_FLAG_TSYNC : 0);
}

static void place_filters(struct plan *plan, const struct thread *thread)
{
    for (struct filter *filter = thread->filters; filter; filter = filter->next) {
        struct { uint64_t length, instructions; } program = { filter->length, place_instructions(plan, filter) };
        filter->program = plan_data(plan, &program, sizeof program);
    }
}

void seccomp_emit_privileged(struct batch *batch, const struct thread *thread)
{
    if (may_filter_at_the_end(thread) || is_served(thread))
        return;
    place_filters(batch->plan, thread);
    for (const struct filter *filter = thread->filters; filter; filter = filter->next)
        EMIT(batch, "seccomp filter", SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags_of(thread, filter), filter->program);
}

static int seccomp_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    if (may_filter_at_the_end(thread) && !is_served(thread))
        place_filters(batch->plan, thread);
    return 0;
}

static struct seccomp_data call_of(const struct plan *plan, const struct op *op)
{
    bool waits = op->number == OP_WAIT || op->number == OP_SIGNAL;
    struct seccomp_data call = filter_call(waits ? SYS_futex : op->number);
    call.instruction_pointer = plan->arena;
    for (int i = 0; i < 6; i++)
        call.args[i] = op->arg[i];
    return call;
}

static const char *name_of(int number)
{
    switch (number) {
    case SYS_futex: return "futex";
    case SYS_seccomp: return "seccomp";
    case SYS_capset: return "capset";
    case SYS_prctl: return "prctl";
    default: return "a system call";
    }
}

static int refuse(const struct thread *thread, int number, uint32_t verdict, struct error *err)
{
    bool kills = verdict == SECCOMP_RET_KILL_PROCESS || verdict == SECCOMP_RET_KILL_THREAD || verdict == SECCOMP_RET_TRAP;
    return fail(err, "unsupported",
                "%s has a seccomp filter that %s %s, which a fork has to make in it; let it set no_new_privs before it installs its filter",
                process_label(thread->process), kills ? "kills it on" : "denies it", name_of(number));
}

int seccomp_check_rest(const struct batch *batch, const struct thread *thread, struct error *err)
{
    if (!thread->filters || may_filter_at_the_end(thread) || is_served(thread))
        return 0;
    int at = 0;
    while (at < batch->count && batch->ops[at].number != SYS_seccomp)
        at++;
    const struct filter *installed = thread->filters->next;     /* the first that is not there yet */
    for (at++; at < batch->count; at++) {
        const struct op *op = &batch->ops[at];
        struct seccomp_data call = call_of(batch->plan, op);
        uint32_t verdict = call.nr < 0 ? SECCOMP_RET_ALLOW : filter_verdict(thread->filters, installed, &call);
        if (!filter_lets_through(verdict))
            return refuse(thread, call.nr, verdict, err);
        if (op->number == SYS_seccomp && installed)
            installed = installed->next;
    }
    return 0;
}

static int install(const struct process *process, pid_t tid, const uint64_t args[6], struct error *err)
{
    struct user_regs_struct regs;
    long result;
    if (get_registers(tid, &regs, err) < 0 || inject_syscall(tid, &regs, process->map->vdso, SYS_seccomp, args, &result, err) < 0)
        return -1;
    if (result == 0)
        return 0;
    errno = result < 0 ? (int)-result : ESRCH;      /* above 0: a thread that cannot take the leader's filters */
    return fail_errno(err, "%s: cannot install its seccomp filter in the branch", process_label(process));
}

static int finish_thread(const struct thread *thread, pid_t tid, struct error *err)
{
    bool is_done = !may_filter_at_the_end(thread) || is_served(thread);
    for (const struct filter *filter = is_done ? NULL : thread->filters; filter; filter = filter->next)
        if (install(thread->process, tid, (uint64_t[6]){ SECCOMP_SET_MODE_FILTER, flags_of(thread, filter), filter->program }, err) < 0)
            return -1;
    if (thread->seccomp_mode == SECCOMP_MODE_STRICT)
        return install(thread->process, tid, (uint64_t[6]){ SECCOMP_SET_MODE_STRICT }, err);
    return 0;
}

int seccomp_finish(const struct process *process, const pid_t *tids, struct error *err)
{
    for (int i = 0; i < process->thread_count; i++)
        if (finish_thread(&process->threads[i], tids[i], err) < 0)
            return -1;
    return 0;
}

const struct part part_seccomp = { .name = "seccomp", .ask = seccomp_ask, .collect = seccomp_collect, .emit = seccomp_emit };
