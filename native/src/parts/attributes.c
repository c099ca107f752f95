/* Of each thread: scheduling, CPU affinity, I/O priority, timer slack, personality. (The death signal: process.c, after credentials.) */
#include "parts.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_CLASS_SHIFT 13
#define IOPRIO_REALTIME 1
#define CLAMP_NONE 1024         /* SCHED_CAPACITY_SCALE */
#define CLAMP_FLAGS 0x60        /* SCHED_FLAG_UTIL_CLAMP */
#define PERSONALITY_QUERY 0xffffffff
#define DEFAULT_TIMER_SLACK 50000

struct attributes_memo {
    uint64_t scheduling, affinity;
    int affinity_op, io_priority_op, slack_op, personality_op, death_op;
    uint64_t death_signal;
};

static int attributes_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    struct attributes_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->scheduling = query_reserve(query, sizeof(struct scheduling));
    mine->affinity = query_reserve(query, AFFINITY_BYTES);
    mine->death_signal = query_reserve(query, sizeof(int));
    ASK(query, SYS_sched_getattr, 0, mine->scheduling, sizeof(struct scheduling), 0);
    mine->affinity_op = ASK(query, SYS_sched_getaffinity, 0, AFFINITY_BYTES, mine->affinity);
    mine->io_priority_op = ASK(query, SYS_ioprio_get, IOPRIO_WHO_PROCESS, 0);
    mine->slack_op = ASK(query, SYS_prctl, PR_GET_TIMERSLACK);
    mine->personality_op = ASK(query, SYS_personality, PERSONALITY_QUERY);
    mine->death_op = ASK(query, SYS_prctl, PR_GET_PDEATHSIG, mine->death_signal);
    return 0;
}

/* A mask that only says "all that this container has" is inherited anyway. */
static size_t unusual_affinity(const unsigned char *mask, int64_t size)
{
    static unsigned char own[AFFINITY_BYTES];
    static long own_size;
    if (!own_size)
        own_size = syscall(SYS_sched_getaffinity, 0, sizeof own, own);
    if (size <= 0 || (size == own_size && memcmp(mask, own, (size_t)size) == 0))
        return 0;
    return (size_t)size;
}

/* For ordinary policies this is the time slice: set back, the default would count as one's own choice. */
static void forget_default_slice(struct scheduling *scheduling)
{
    static struct scheduling own;
    if (!own.size)
        syscall(SYS_sched_getattr, 0, &own, sizeof own, 0);
    if (scheduling->runtime == own.runtime)
        scheduling->runtime = 0;
}

static int attributes_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    const struct attributes_memo *mine = memo;
    struct thread *thread = query_thread(query);
    struct attributes *attributes = thread->attributes = must_alloc(sizeof *attributes);
    memcpy(&attributes->scheduling, query_read(query, mine->scheduling), sizeof attributes->scheduling);
    attributes->scheduling.size = sizeof attributes->scheduling;
    forget_default_slice(&attributes->scheduling);
    if (attributes->scheduling.clamp_least || (attributes->scheduling.clamp_most && attributes->scheduling.clamp_most < CLAMP_NONE))
        attributes->scheduling.flags |= CLAMP_FLAGS;
    memcpy(attributes->affinity, query_read(query, mine->affinity), AFFINITY_BYTES);
    attributes->affinity_size = unusual_affinity(attributes->affinity, query_result(query, mine->affinity_op));
    int64_t priority = query_result(query, mine->io_priority_op);
    attributes->io_priority = priority >> IOPRIO_CLASS_SHIFT > 0 ? (int)priority : 0;
    int64_t slack = query_result(query, mine->slack_op);
    attributes->timer_slack = slack > 0 && slack != DEFAULT_TIMER_SLACK ? slack : 0;
    int64_t persona = query_result(query, mine->personality_op);
    attributes->personality = persona > 0 ? (uint64_t)persona : 0;
    if (query_result(query, mine->death_op) == 0)
        attributes->death_signal = *(int *)query_read(query, mine->death_signal);
    return 0;
}

/* Somebody outside must have set these, or the workspace has been given the privilege. */
static bool needs_privilege(const struct scheduling *scheduling)
{
    bool ordinary = scheduling->policy == SCHED_OTHER || scheduling->policy == SCHED_BATCH || scheduling->policy == SCHED_IDLE;
    return !ordinary || scheduling->nice < 0;
}

static bool is_realtime(int io_priority)
{
    return io_priority >> IOPRIO_CLASS_SHIFT == IOPRIO_REALTIME;
}

int attributes_finish(const struct thread *thread, pid_t tid, struct error *err)
{
    const struct attributes *attributes = thread->attributes;
    if (is_realtime(attributes->io_priority) && syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, tid, attributes->io_priority) < 0)
        return fail_errno(err, "%s: cannot give its thread %d real-time I/O priority in the branch", process_label(thread->process), thread->ns_tid);
    if (!needs_privilege(&attributes->scheduling) || syscall(SYS_sched_setattr, tid, &attributes->scheduling, 0) == 0)
        return 0;
    if (errno == EBUSY)
        return fail(err, "limit", "%s: its thread %d has a deadline policy, and there is no processor time left to promise it to the branch as well",
                    process_label(thread->process), thread->ns_tid);
    return fail_errno(err, "%s: cannot give its thread %d policy %u with nice %d in the branch", process_label(thread->process), thread->ns_tid,
                      attributes->scheduling.policy, attributes->scheduling.nice);
}

static int attributes_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct attributes *attributes = thread->attributes;
    struct plan *plan = batch->plan;
    /* Always: the restorer's own niceness is whatever the engine was started with. */
    EMIT_FLAGS(batch, "scheduling", needs_privilege(&attributes->scheduling) ? TOLERATING(SET_FROM_OUTSIDE) : 0, SYS_sched_setattr, 0,
               plan_data(plan, &attributes->scheduling, sizeof attributes->scheduling), 0);
    if (attributes->affinity_size)
        EMIT(batch, "CPU affinity", SYS_sched_setaffinity, 0, attributes->affinity_size,
             plan_data(plan, attributes->affinity, attributes->affinity_size));
    if (attributes->io_priority)
        EMIT_FLAGS(batch, "I/O priority", is_realtime(attributes->io_priority) ? TOLERATING(SET_FROM_OUTSIDE) : 0, SYS_ioprio_set,
                   IOPRIO_WHO_PROCESS, 0, (uint64_t)attributes->io_priority);
    if (attributes->timer_slack)
        EMIT(batch, "timer slack", SYS_prctl, PR_SET_TIMERSLACK, (uint64_t)attributes->timer_slack);
    if (attributes->personality)
        EMIT(batch, "personality", SYS_personality, attributes->personality);
    return 0;
}

const struct part part_attributes = {
    .name = "attributes", .ask = attributes_ask, .collect = attributes_collect, .emit = attributes_emit,
};
