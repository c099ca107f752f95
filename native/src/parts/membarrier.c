/* membarrier: for which kinds of barrier the program has registered. The barriers it asks for are refused else. */
#include "parts.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>

#ifndef MEMBARRIER_CMD_GET_REGISTRATIONS
#define MEMBARRIER_CMD_GET_REGISTRATIONS (1 << 9)   /* Linux 6.3 */
#endif

struct membarrier_memo {
    int op;
};

static int membarrier_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    if (!query_is_leader(query))
        return 0;
    struct membarrier_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->op = ASK(query, SYS_membarrier, MEMBARRIER_CMD_GET_REGISTRATIONS, 0, 0);
    return 0;
}

static int membarrier_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    const struct membarrier_memo *mine = memo;
    if (mine && query_result(query, mine->op) > 0)
        process_state(query_thread(query)->process)->membarriers = (uint32_t)query_result(query, mine->op);
    return 0;
}

/* Before there are threads: with several the kernel waits for a grace period of some milliseconds. */
void membarrier_emit(struct batch *batch, const struct process *process)
{
    for (uint32_t command = 1; command && command <= process->state->membarriers; command <<= 1)
        if (process->state->membarriers & command)
            EMIT(batch, "memory barriers", SYS_membarrier, command, 0, 0);
}

const struct part part_membarrier = { .name = "memory barriers", .ask = membarrier_ask, .collect = membarrier_collect };
