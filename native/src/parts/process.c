/* Of the process: dumpable, child subreaper, huge pages, memory merging, the OOM killer's adjustment; and the death signal of each thread. */
#include "parts.h"
#include "../locks.h"
#include "../proc.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef PR_GET_MEMORY_MERGE
#define PR_GET_MEMORY_MERGE 68
#endif
#ifndef PR_GET_MDWE
#define PR_SET_MDWE 65
#define PR_GET_MDWE 66
#endif
#define PROC_LIMIT 4096
#define LDT_READ 0
#define LDT_ENTRY 8             /* bytes */
#define DUMPABLE_BY_ROOT_ONLY 2     /* cannot be set: only the kernel itself does, for setuid programs */

/* What the engine gave us it gave the restorer too. */
struct own_values {
    int oom_score_adjust;
    bool audited;               /* the kernel knows who logged in */
    uint32_t login;
};

static const struct own_values *own_values(void)
{
    static struct own_values values;
    static bool known;
    struct error ignored = { 0 };
    if (known)
        return &values;
    known = true;
    AUTO_FREE char *adjust = proc_read(&ignored, PROC_LIMIT, NULL, "/proc/self/oom_score_adj");
    AUTO_FREE char *login = proc_read(&ignored, PROC_LIMIT, NULL, "/proc/self/loginuid");
    values = (struct own_values){ adjust ? atoi(adjust) : 0, login != NULL, login ? (uint32_t)strtoul(login, NULL, 10) : 0 };
    return &values;
}

struct process_memo {
    int dumpable_op, thp_op, merge_op, deny_op, subreaper_op, ldt_op;
    uint64_t subreaper, ldt;
};

static int process_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    if (!query_is_leader(query))
        return 0;
    struct process_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->subreaper = query_reserve(query, sizeof(int));
    mine->ldt = query_reserve(query, LDT_ENTRY);
    mine->ldt_op = ASK(query, SYS_modify_ldt, LDT_READ, mine->ldt, LDT_ENTRY);
    mine->dumpable_op = ASK(query, SYS_prctl, PR_GET_DUMPABLE);
    mine->thp_op = ASK(query, SYS_prctl, PR_GET_THP_DISABLE);
    mine->merge_op = ASK(query, SYS_prctl, PR_GET_MEMORY_MERGE);
    mine->deny_op = ASK(query, SYS_prctl, PR_GET_MDWE);
    mine->subreaper_op = ASK(query, SYS_prctl, PR_GET_CHILD_SUBREAPER, mine->subreaper);
    return 0;
}

static int positive(const struct query *query, int op)
{
    int64_t result = query_result(query, op);
    return result > 0 ? (int)result : 0;
}

static int process_collect(struct query *query, void *memo, struct error *err)
{
    if (!memo)
        return 0;
    const struct process_memo *mine = memo;
    struct process *process = query_thread(query)->process;
    struct process_state *state = process_state(process);
    /* Without a table nothing is read. How many entries one has nobody tells, and reading all 8192 would cost every fork. */
    if (query_result(query, mine->ldt_op) == LDT_ENTRY)
        return fail(err, "unsupported", "%s has memory segments of its own (modify_ldt, for 16-bit programs), which cannot be forked; end it",
                    process_label(process));
    state->dumpable = positive(query, mine->dumpable_op);
    state->thp_disabled = positive(query, mine->thp_op);
    state->memory_merge = positive(query, mine->merge_op);
    state->memory_deny_write_execute = positive(query, mine->deny_op);
    if (query_result(query, mine->subreaper_op) == 0)
        state->child_subreaper = *(int *)query_read(query, mine->subreaper);
    AUTO_FREE char *text = proc_read(err, PROC_LIMIT, NULL, "/proc/%d/oom_score_adj", process->pid);
    if (!text)
        return -1;
    state->oom_score_adjust = atoi(text);
    state->login = own_values()->login;
    if (own_values()->audited) {
        AUTO_FREE char *login = proc_read(err, PROC_LIMIT, NULL, "/proc/%d/loginuid", process->pid);
        if (!login)
            return -1;
        state->login = (uint32_t)strtoul(login, NULL, 10);
    }
    return 0;
}

/* Raising is free, lowering needs CAP_SYS_RESOURCE: then the branch is a little more likely to be killed than its source. */
static void emit_oom_score_adjust(struct batch *batch, int value, bool nested)
{
    struct plan *plan = batch->plan;
    char text[16];
    if (nested)         /* a change of ids made it the host's root's, whom a nested user namespace does not know */
        EMIT(batch, "dumpable", SYS_prctl, PR_SET_DUMPABLE, 1);
    int length = snprintf(text, sizeof text, "%d", value);
    EMIT(batch, "OOM score", SYS_openat, (uint64_t)AT_FDCWD, plan_string(plan, "/proc/self/oom_score_adj"), O_WRONLY | O_CLOEXEC);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, "OOM score", OP_LOAD(0) | OP_MAY_FAIL, SYS_write, cell, plan_data(plan, text, sizeof text), (uint64_t)length);
    EMIT_FLAGS(batch, "OOM score", OP_LOAD(0), SYS_close, cell);
}

/* A task inherits it; so each writes its own. Not in a nested user namespace, which may not know the id: there it stays what the parent's was. */
static void emit_login(struct batch *batch, const struct process *process)
{
    char text[16];
    if (process->state->login == own_values()->login || process->host_ids)
        return;
    struct plan *plan = batch->plan;
    int length = snprintf(text, sizeof text, "%u", process->state->login);
    EMIT_FLAGS(batch, "login id", OP_MAY_FAIL, SYS_openat, (uint64_t)AT_FDCWD, plan_string(plan, "/proc/thread-self/loginuid"), O_WRONLY | O_CLOEXEC);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, "login id", OP_LOAD(0) | OP_MAY_FAIL, SYS_write, cell, plan_data(plan, text, sizeof text), (uint64_t)length);
    EMIT_FLAGS(batch, "login id", OP_LOAD(0) | OP_MAY_FAIL, SYS_close, cell);
}

static int process_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    emit_login(batch, process);
    if (thread != &process->threads[0])
        return 0;
    const struct process_state *state = process->state;
    if (state->child_subreaper)
        EMIT(batch, "child subreaper", SYS_prctl, PR_SET_CHILD_SUBREAPER, 1);
    if (state->thp_disabled)
        EMIT(batch, "huge pages", SYS_prctl, PR_SET_THP_DISABLE, 1);
    if (state->memory_deny_write_execute)
        EMIT(batch, "write-execute denial", SYS_prctl, PR_SET_MDWE, (uint64_t)state->memory_deny_write_execute);
    if (state->oom_score_adjust != own_values()->oom_score_adjust)
        emit_oom_score_adjust(batch, state->oom_score_adjust, process->host_ids != NULL);
    return 0;
}

const struct part part_process = { .name = "process", .ask = process_ask, .collect = process_collect, .emit = process_emit };

/* A change of credentials clears the death signal and makes the memory undumpable. The leader comes last, so its word on the latter stands. */
static int after_credentials_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    if (thread->attributes->death_signal)
        EMIT(batch, "death signal", SYS_prctl, PR_SET_PDEATHSIG, (uint64_t)thread->attributes->death_signal);
    if (thread == &process->threads[0])
        EMIT(batch, "dumpable", SYS_prctl, PR_SET_DUMPABLE, (uint64_t)(process->state->dumpable % DUMPABLE_BY_ROOT_ONLY));
    if (thread == &process->threads[0])
        locks_emit_late_leases(batch, process);
    return 0;
}

const struct part part_after_credentials = { .name = "after credentials", .emit = after_credentials_emit };
