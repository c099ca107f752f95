/* Processes that let nobody near them: one blocks every signal, one ignores each, one catches each, one spins with all blocked and lets nobody trace it. */
#include "fidelity.h"

#define SIGNALS 65

static volatile int caught;
static volatile uint64_t turns;

static void count(int number)
{
    (void)number;
    caught++;
}

static void handle_all(void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigfillset(&action.sa_mask);
    for (int number = 1; number < SIGNALS; number++)
        if (number != SIGKILL && number != SIGSTOP)
            sigaction(number, &action, NULL);   /* the C library keeps two for itself */
}

static void block_all(void)
{
    uint64_t all = ~0ull;
    MUST((int)syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8));
}

static uint64_t blocked(void)
{
    uint64_t mask = 0;
    MUST((int)syscall(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8));
    return mask;
}

static const uint64_t NOT_BLOCKABLE = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1);

static int blocker(void)
{
    block_all();
    fidelity_await_go();
    return (blocked() | NOT_BLOCKABLE) == ~0ull ? 0 : 10;
}

static int ignorer(void)
{
    handle_all(SIG_IGN, 0);
    fidelity_await_go();
    for (int number = 1; number < SIGNALS; number++) {
        struct sigaction action;
        if (number != SIGKILL && number != SIGSTOP && sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            return 20;
    }
    raise(SIGTERM);
    return 0;
}

static int catcher(void)
{
    handle_all(count, SA_RESTART | SA_ONSTACK);
    while (!fidelity_may_go())
        usleep(1000 * FIDELITY_POLL_MS);
    if (caught)
        return 30;      /* being forked sends no signal */
    raise(SIGTERM);
    raise(SIGTRAP);
    return caught == 2 ? 0 : 31;
}

static int spinner(void)
{
    block_all();
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    double end = fidelity_now(CLOCK_MONOTONIC) + FIDELITY_SPIN_SECONDS;
    while (fidelity_now(CLOCK_MONOTONIC) < end)
        turns++;
    fidelity_await_go();
    return prctl(PR_GET_DUMPABLE) == 0 && turns && (blocked() | NOT_BLOCKABLE) == ~0ull ? 0 : 40;
}

int main(void)
{
    static int (*const kinds[])(void) = { blocker, ignorer, catcher, spinner };
    pid_t children[4];
    for (int i = 0; i < 4; i++)
        if ((children[i] = fidelity_fork()) == 0)
            _exit(kinds[i]());
    fidelity_sleep_ms(200);
    fidelity_ready();
    fidelity_await_go();
    for (int i = 0; i < 4; i++) {
        int status;
        MUST(waitpid(children[i], &status, 0));
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child %d ended with status %#x", i, status);
    }
    fidelity_pass();
}
