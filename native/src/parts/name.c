/* The thread's name (comm). */
#include "parts.h"

#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

struct name_memo {
    uint64_t name;
};

static int name_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    struct name_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->name = query_reserve(query, sizeof query_thread(query)->name);
    ASK(query, SYS_prctl, PR_GET_NAME, mine->name);
    return 0;
}

static int name_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    const struct name_memo *mine = memo;
    struct thread *thread = query_thread(query);
    memcpy(thread->name, query_read(query, mine->name), sizeof thread->name);
    thread->name[sizeof thread->name - 1] = 0;
    return 0;
}

static int name_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    EMIT(batch, "thread name", SYS_prctl, PR_SET_NAME, plan_string(batch->plan, thread->name));
    return 0;
}

const struct part part_name = { .name = "name", .ask = name_ask, .collect = name_collect, .emit = name_emit };
