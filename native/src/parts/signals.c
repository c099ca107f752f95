/* Signal actions and alternate signal stacks. */
#include "parts.h"

#include <string.h>
#include <sys/syscall.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)
#endif

/* ---- actions: of the process ---- */

struct actions_memo {
    uint64_t actions;           /* SIGNALS of them, the first is signal 1's */
};

static bool can_have_action(int signal)
{
    return signal != SIGKILL && signal != SIGSTOP;
}

static int actions_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    if (!query_is_leader(query))
        return 0;
    struct actions_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->actions = query_reserve(query, SIGNALS * sizeof(struct kernel_sigaction));
    for (int signal = 1; signal <= SIGNALS; signal++) {
        uint64_t at = mine->actions + (uint64_t)(signal - 1) * sizeof(struct kernel_sigaction);
        if (can_have_action(signal))
            ASK(query, SYS_rt_sigaction, (uint64_t)signal, 0, at, KERNEL_SIGSET_SIZE);
    }
    return 0;
}

static int actions_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    if (!memo)
        return 0;
    const struct actions_memo *mine = memo;
    struct process *process = query_thread(query)->process;
    process->actions = must_alloc((SIGNALS + 1) * sizeof *process->actions);
    memcpy(process->actions + 1, query_read(query, mine->actions), SIGNALS * sizeof *process->actions);
    return 0;
}

static int actions_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    if (thread != &process->threads[0])
        return 0;
    for (int signal = 1; signal <= SIGNALS; signal++) {
        const struct kernel_sigaction *action = &process->actions[signal];
        /* tclone-restore starts with every action at its default. */
        if (!can_have_action(signal) || (!action->handler && !action->flags && !action->mask))
            continue;
        EMIT(batch, "signal action", SYS_rt_sigaction, (uint64_t)signal, plan_data(batch->plan, action, sizeof *action), 0, KERNEL_SIGSET_SIZE);
    }
    return 0;
}

const struct part part_signal_actions = {
    .name = "signal actions", .ask = actions_ask, .collect = actions_collect, .emit = actions_emit,
};

/* ---- alternate stack: of the thread ---- */

struct stack_memo {
    uint64_t stack;
};

static int stack_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    struct stack_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->stack = query_reserve(query, sizeof(stack_t));
    ASK(query, SYS_sigaltstack, 0, mine->stack);
    return 0;
}

static int stack_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    const struct stack_memo *mine = memo;
    memcpy(&query_thread(query)->alt_stack, query_read(query, mine->stack), sizeof(stack_t));
    return 0;
}

static int stack_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    stack_t stack = thread->alt_stack;
    if (stack.ss_flags & SS_DISABLE)
        return 0;
    /* SS_ONSTACK only reports that the thread is in a handler now: where its stack pointer is says so again. */
    stack.ss_flags &= (int)SS_AUTODISARM;
    EMIT(batch, "alternate signal stack", SYS_sigaltstack, plan_data(batch->plan, &stack, sizeof stack), 0);
    return 0;
}

const struct part part_alt_stack = { .name = "alternate stack", .ask = stack_ask, .collect = stack_collect, .emit = stack_emit };
