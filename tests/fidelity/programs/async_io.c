/*
 * Signals for what can be read or written (O_ASYNC): the owner is a process, a thread that is not its first, a group whose leader has ended, a process whose first
 * thread has ended. Each gets its own signal after the fork, and nobody gets one before.
 */
#include "fidelity.h"

#include <pthread.h>
#include <sys/socket.h>

#define PATIENCE 20             /* seconds */
#define OF_PROCESS (SIGRTMIN + 1)
#define OF_THREAD (SIGRTMIN + 2)
#define OF_LEADERLESS (SIGRTMIN + 3)

enum { PROCESS, THREAD, GROUP, LEADERLESS, CASES };

static int ends[CASES][2];      /* what is written to [1] can be read from [0] */
static volatile pid_t thread_id, told_thread;
static volatile int told_fd = -1;
static pthread_t thread;
static volatile bool *leaderless_ready;

static void own(int fd, int type, pid_t who, int signal)
{
    struct f_owner_ex owner = { type, who };
    MUST(fcntl(fd, F_SETOWN_EX, &owner));
    if (signal)
        MUST(fcntl(fd, F_SETSIG, signal));
    MUST(fcntl(fd, F_SETFL, MUST(fcntl(fd, F_GETFL)) | O_ASYNC | O_NONBLOCK));
}

static void check_owner(int fd, int type, pid_t who, int signal, const char *what)
{
    struct f_owner_ex owner = { -1, 0 };
    MUST(fcntl(fd, F_GETOWN_EX, &owner));
    CHECK((int)owner.type == type && owner.pid == who, "%s: the owner is %d of type %d, not %d of type %d", what, owner.pid, owner.type, who, type);
    CHECK(fcntl(fd, F_GETSIG) == signal, "%s: the signal is %d", what, fcntl(fd, F_GETSIG));
    CHECK(fcntl(fd, F_GETFL) & O_ASYNC, "%s: O_ASYNC is lost", what);
}

static bool gets(int signal, int fd)
{
    sigset_t set;
    siginfo_t info;
    struct timespec patience = { PATIENCE, 0 };
    sigemptyset(&set);
    sigaddset(&set, signal);
    int got;
    do
        got = sigtimedwait(&set, &info, &patience);
    while (got < 0 && errno == EINTR);
    if (got != signal)
        return false;
    return fd < 0 || (info.si_fd == fd && info.si_code == POLL_IN);
}

static void on_thread_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    told_thread = (pid_t)syscall(SYS_gettid);
    told_fd = info->si_fd;
}

static void *run(void *unused)
{
    thread_id = (pid_t)syscall(SYS_gettid);
    for (;;)
        fidelity_sleep_ms(100);
    return unused;
}

static void *wait_leaderless(void *unused)
{
    (void)unused;
    *leaderless_ready = true;
    _exit(gets(OF_LEADERLESS, ends[LEADERLESS][0]) ? 3 : 1);
}

static void __attribute__((noreturn)) leaderless(void)
{
    pthread_t other;
    if (pthread_create(&other, NULL, wait_leaderless, NULL) != 0)
        _exit(2);
    syscall(SYS_exit, 0);
    __builtin_unreachable();
}

/* A group whose leader has ended; its only member gets SIGIO, since no other signal was asked for. */
static pid_t make_group(pid_t *member)
{
    pid_t leader = fidelity_fork();
    if (leader == 0) {
        setpgid(0, 0);
        for (;;)
            pause();
    }
    setpgid(leader, leader);
    *member = fidelity_fork();
    if (*member == 0) {
        setpgid(0, leader);
        _exit(gets(SIGIO, -1) ? 2 : 1);
    }
    setpgid(*member, leader);
    MUST(kill(leader, SIGKILL));
    MUST(waitpid(leader, NULL, 0));
    return leader;
}

int main(void)
{
    const int signals[] = { SIGIO, OF_PROCESS, OF_LEADERLESS };
    sigset_t set, pending;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaddset(&set, signals[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    struct sigaction action = { .sa_sigaction = on_thread_signal, .sa_flags = SA_SIGINFO | SA_RESTART };
    MUST(sigaction(OF_THREAD, &action, NULL));
    leaderless_ready = MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    MUST(pipe(ends[PROCESS]));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends[THREAD]));
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends[GROUP]));
    MUST(pipe(ends[LEADERLESS]));
    pid_t member, group = make_group(&member), without_leader = fidelity_fork();
    if (without_leader == 0)
        leaderless();
    CHECK(pthread_create(&thread, NULL, run, NULL) == 0, "no thread");
    while (!thread_id || !*leaderless_ready)
        fidelity_sleep_ms(5);
    own(ends[PROCESS][0], F_OWNER_PID, getpid(), OF_PROCESS);
    own(ends[THREAD][0], F_OWNER_TID, thread_id, OF_THREAD);
    own(ends[GROUP][0], F_OWNER_PGRP, group, 0);
    own(ends[LEADERLESS][0], F_OWNER_PID, without_leader, OF_LEADERLESS);

    fidelity_ready();
    fidelity_await_go();

    check_owner(ends[PROCESS][0], F_OWNER_PID, getpid(), OF_PROCESS, "a process");
    check_owner(ends[THREAD][0], F_OWNER_TID, thread_id, OF_THREAD, "a thread");
    check_owner(ends[GROUP][0], F_OWNER_PGRP, group, 0, "a group");
    check_owner(ends[LEADERLESS][0], F_OWNER_PID, without_leader, OF_LEADERLESS, "a process without its first thread");
    sigpending(&pending);
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        CHECK(sigismember(&pending, signals[i]) != 1, "signal %d came early", signals[i]);
    CHECK(told_fd == -1, "the thread's signal came early");
    for (int i = 0; i < CASES; i++)
        MUST((int)write(ends[i][1], "x", 1));
    CHECK(gets(OF_PROCESS, ends[PROCESS][0]), "the process gets no signal");
    for (int tries = 0; told_fd == -1 && tries < PATIENCE * 50; tries++)
        fidelity_sleep_ms(20);
    CHECK(told_fd == ends[THREAD][0] && told_thread == thread_id, "the thread's signal: descriptor %d, thread %d, not %d", told_fd, told_thread, thread_id);
    fidelity_expect_exit(member, 2);
    fidelity_expect_exit(without_leader, 3);
    fidelity_pass();
}
