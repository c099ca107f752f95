/* Resource limits. Asked from inside: prlimit on a task of another uid needs CAP_SYS_RESOURCE. */
#include "parts.h"

#include <string.h>
#include <sys/syscall.h>

struct limits_memo {
    uint64_t limits;
};

static int limits_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    if (!query_is_leader(query))
        return 0;
    struct limits_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->limits = query_reserve(query, RLIM_NLIMITS * sizeof(struct rlimit));
    for (int i = 0; i < RLIM_NLIMITS; i++)
        ASK(query, SYS_prlimit64, 0, (uint64_t)i, 0, mine->limits + (uint64_t)i * sizeof(struct rlimit));
    return 0;
}

static int limits_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    if (!memo)
        return 0;
    const struct limits_memo *mine = memo;
    struct process_state *state = process_state(query_thread(query)->process);
    memcpy(state->limits, query_read(query, mine->limits), sizeof state->limits);
    return 0;
}

/* The restorer comes from the same engine as we do and has our limits, except that it raised the one on descriptors. */
static const struct rlimit *limit_of_restorer(int resource)
{
    static struct rlimit own[RLIM_NLIMITS];
    static bool known;
    for (int i = 0; !known && i < RLIM_NLIMITS; i++)
        getrlimit((__rlimit_resource_t)i, &own[i]);
    known = true;
    return &own[resource];
}

static bool is_default(int resource, const struct rlimit *limit)
{
    const struct rlimit *own = limit_of_restorer(resource);
    return resource != RLIMIT_NOFILE && limit->rlim_cur == own->rlim_cur && limit->rlim_max == own->rlim_max;
}

/* A hard limit above the restorer's cannot be had without CAP_SYS_RESOURCE: then the restorer's stays. */
static bool needs_privilege(int resource, const struct rlimit *limit)
{
    return limit->rlim_max > limit_of_restorer(resource)->rlim_max;
}

static int limits_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    if (thread != &process->threads[0])
        return 0;
    for (int i = 0; i < RLIM_NLIMITS; i++) {
        const struct rlimit *limit = &process->state->limits[i];
        if (!is_default(i, limit))
            EMIT_FLAGS(batch, "resource limit", needs_privilege(i, limit) ? TOLERATING(LACKING_RIGHTS) : 0, SYS_prlimit64, 0, (uint64_t)i,
                       plan_data(batch->plan, limit, sizeof *limit), 0);
    }
    return 0;
}

const struct part part_limits = { .name = "limits", .ask = limits_ask, .collect = limits_collect, .emit = limits_emit };
