/* Signal actions with flags and masks, the blocked set, the alternate stack (in use across the fork), pending signals with their data. */
#include "fidelity.h"

static char stack_memory[65536];
static volatile int handled, on_stack, value_seen, code_seen, sender_seen;

static void on_queue(int signal, siginfo_t *info, void *context)
{
    (void)context;
    (void)signal;
    handled++;
    value_seen = info->si_value.sival_int;
    code_seen = info->si_code;
    sender_seen = info->si_pid;
    char here;
    on_stack = &here >= stack_memory && &here < stack_memory + sizeof stack_memory;
}

static volatile int in_handler_done;

/* The fork happens while this handler runs. */
static void wait_in_handler(int signal)
{
    (void)signal;
    fidelity_ready();
    fidelity_await_go();
    char here;
    in_handler_done = &here >= stack_memory && &here < stack_memory + sizeof stack_memory ? 1 : 2;
}

int main(void)
{
    stack_t stack = { .ss_sp = stack_memory, .ss_size = sizeof stack_memory }, stack_now;
    MUST(sigaltstack(&stack, NULL));
    struct sigaction queue = { .sa_sigaction = on_queue, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART }, now;
    sigaddset(&queue.sa_mask, SIGUSR2);
    MUST(sigaction(SIGRTMIN + 3, &queue, NULL));
    MUST(sigaction(SIGRTMIN + 4, &queue, NULL));
    struct sigaction waiting = { .sa_handler = wait_in_handler, .sa_flags = SA_ONSTACK | SA_NODEFER };
    MUST(sigaction(SIGUSR1, &waiting, NULL));
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTRAP, SIG_IGN);
    struct sigaction reap = { .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDWAIT };
    MUST(sigaction(SIGCHLD, &reap, NULL));

    sigset_t blocked, blocked_now;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGRTMIN + 3);
    sigaddset(&blocked, SIGRTMIN + 4);
    MUST(sigprocmask(SIG_SETMASK, &blocked, NULL));
    /* Two shared ones in order, and one for this thread. */
    MUST(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = 71 }));
    MUST(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = 72 }));
    MUST((int)syscall(SYS_tgkill, getpid(), getpid(), SIGRTMIN + 4));
    raise(SIGUSR1);

    CHECK(in_handler_done == 1, "the handler did not go on on its alternate stack (%d)", in_handler_done);
    MUST(sigprocmask(SIG_SETMASK, NULL, &blocked_now));
    CHECK(memcmp(&blocked, &blocked_now, 8) == 0, "the blocked set differs");
    MUST(sigaltstack(NULL, &stack_now));
    CHECK(stack_now.ss_sp == stack_memory && stack_now.ss_size == sizeof stack_memory, "the alternate stack differs");
    MUST(sigaction(SIGRTMIN + 3, NULL, &now));
    CHECK(now.sa_sigaction == on_queue && (now.sa_flags & (SA_SIGINFO | SA_ONSTACK | SA_RESTART)) == (SA_SIGINFO | SA_ONSTACK | SA_RESTART)
          && sigismember(&now.sa_mask, SIGUSR2) == 1, "the action of SIGRTMIN+3 differs");
    MUST(sigaction(SIGPIPE, NULL, &now));
    CHECK(now.sa_handler == SIG_IGN, "SIGPIPE is not ignored any more");
    MUST(sigaction(SIGTRAP, NULL, &now));
    CHECK(now.sa_handler == SIG_IGN, "SIGTRAP is not ignored any more");
    MUST(sigaction(SIGCHLD, NULL, &now));
    CHECK(now.sa_handler == SIG_DFL && (now.sa_flags & SA_NOCLDWAIT), "the action of SIGCHLD differs");

    sigset_t one;
    siginfo_t info;
    struct timespec soon = { 1, 0 };
    sigemptyset(&one);
    sigaddset(&one, SIGRTMIN + 3);
    CHECK(sigtimedwait(&one, &info, &soon) == SIGRTMIN + 3 && info.si_value.sival_int == 71 && info.si_code == SI_QUEUE
          && info.si_pid == getpid(), "the first pending signal differs");
    sigdelset(&blocked, SIGRTMIN + 3);
    MUST(sigprocmask(SIG_SETMASK, &blocked, NULL));
    CHECK(handled == 1 && value_seen == 72 && code_seen == SI_QUEUE && sender_seen == getpid() && on_stack,
          "the second: handled %d times, value %d, code %d", handled, value_seen, code_seen);
    sigdelset(&blocked, SIGRTMIN + 4);
    MUST(sigprocmask(SIG_SETMASK, &blocked, NULL));
    CHECK(handled == 2 && code_seen == SI_TKILL, "the thread's own: handled %d times, code %d", handled, code_seen);
    sigpending(&one);
    for (int i = 1; i < 64; i++)
        CHECK(sigismember(&one, i) != 1, "signal %d is pending, nobody sent it", i);
    fidelity_pass();
}
