/*
 * Signals that children get when their parent ends (PR_SET_PDEATHSIG): none comes from the fork, each comes when the parent ends in source or branch. Parents: an
 * ordinary process, one of whose threads forked the child, one whose first thread has ended since.
 */
#include "fidelity.h"

#include <pthread.h>

#define PATIENCE 20             /* seconds */

enum { ORDINARY, BY_THREAD, LEADERLESS, CASES };
enum { NOTHING, EARLY, TOLD, NEVER_TOLD };      /* of a child */

struct board {
    volatile int ready, end;
    volatile int verdicts[CASES];
    volatile pid_t children[CASES];
};

static struct board *board;

static void child(int which)
{
    sigset_t set, pending;
    siginfo_t info;
    struct timespec patience = { PATIENCE, 0 };
    pid_t parent = getppid();
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    MUST(prctl(PR_SET_PDEATHSIG, SIGUSR1));
    board->children[which] = getpid();
    __atomic_add_fetch(&board->ready, 1, __ATOMIC_SEQ_CST);
    fidelity_await_go();
    fidelity_sleep_ms(200);     /* what the fork sent would be here by now */
    sigpending(&pending);
    int signal = 0, told = sigismember(&pending, SIGUSR1) == 1 || getppid() != parent ? EARLY : NOTHING;
    MUST(prctl(PR_GET_PDEATHSIG, &signal));
    if (told == NOTHING && signal == SIGUSR1) {
        __atomic_add_fetch(&board->end, 1, __ATOMIC_SEQ_CST);
        told = sigtimedwait(&set, &info, &patience) == SIGUSR1 ? TOLD : NEVER_TOLD;
    }
    board->verdicts[which] = told;
    _exit(0);
}

/* Each child says so when it has seen that nothing came early; then the parents end. */
static void await_end(void)
{
    fidelity_await_go();        /* which may take longer than the patience for what comes then */
    for (int tries = 0; board->end < CASES && tries < PATIENCE * 100; tries++)
        fidelity_sleep_ms(10);
}

static void *fork_in_thread(void *which)
{
    if (fork() == 0)
        child((int)(intptr_t)which);
    if ((int)(intptr_t)which == LEADERLESS) {
        await_end();
        _exit(LEADERLESS);
    }
    for (;;)
        pause();
    return NULL;
}

static void __attribute__((noreturn)) parent(int which)
{
    pthread_t thread;
    if (which == ORDINARY) {
        if (fork() == 0)
            child(which);
    } else if (pthread_create(&thread, NULL, fork_in_thread, (void *)(intptr_t)which) != 0) {
        _exit(99);
    }
    while (!board->children[which])
        fidelity_sleep_ms(5);
    if (which == LEADERLESS)
        syscall(SYS_exit, 0);
    await_end();
    _exit(which);
}

int main(void)
{
    static const char *const names[] = { "an ordinary process", "a thread", "a thread of a process without its first" };
    board = MUST(mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
    pid_t parents[CASES];
    for (int i = 0; i < CASES; i++)
        if ((parents[i] = fidelity_fork()) == 0)
            parent(i);
    while (board->ready < CASES)
        fidelity_sleep_ms(5);
    fidelity_sleep_ms(200);     /* the first thread of the last one ends */

    fidelity_ready();
    fidelity_await_go();
    for (int i = 0; i < CASES; i++)
        fidelity_expect_exit(parents[i], i);
    for (int i = 0; i < CASES; i++) {
        fidelity_expect_exit(board->children[i], 0);
        CHECK(board->verdicts[i] == TOLD, "the child of %s: %s", names[i],
              board->verdicts[i] == EARLY ? "its signal came early" : board->verdicts[i] == NEVER_TOLD ? "no signal came" : "its death signal is lost");
    }
    fidelity_pass();
}
