/* Pidfds of single threads (PIDFD_THREAD): of an own one and one of another process, duplicated, inherited, and of one that has ended. */
#include "fidelity.h"

#include <pthread.h>

#ifndef PIDFD_THREAD
#define PIDFD_THREAD O_EXCL
#endif
#define PIDFD_SIGNAL_THREAD 1
#define OTHER_NUMBER 200
#define PATIENCE_MS 20000

struct worker {
    pthread_t thread;
    pid_t tid;
    bool end;
    int signals;
};

/* In memory that both processes share. */
static struct worker *workers;
static _Thread_local struct worker *mine;

static void on_signal(int number)
{
    (void)number;
    if (mine)
        mine->signals++;
}

static void *work(void *argument)
{
    mine = argument;
    __atomic_store_n(&mine->tid, (pid_t)syscall(SYS_gettid), __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&mine->end, __ATOMIC_SEQ_CST))
        fidelity_sleep_ms(5);
    return NULL;
}

static void start(struct worker *worker)
{
    CHECK(pthread_create(&worker->thread, NULL, work, worker) == 0, "no thread");
    while (!__atomic_load_n(&worker->tid, __ATOMIC_SEQ_CST))
        fidelity_sleep_ms(1);
}

static int open_thread(const struct worker *worker, unsigned flags)
{
    return MUST((int)syscall(SYS_pidfd_open, worker->tid, PIDFD_THREAD | flags));
}

static bool has_ended(int pidfd, int patience)
{
    struct pollfd poll_for = { pidfd, POLLIN, 0 };
    return MUST(poll(&poll_for, 1, patience)) == 1;
}

/* The thread, alive, gets a signal by its pidfd; then it ends while its process lives on. */
static void check(int pidfd, struct worker *worker, const char *what)
{
    CHECK(!has_ended(pidfd, 0), "%s seems to have ended", what);
    MUST((int)syscall(SYS_pidfd_send_signal, pidfd, SIGUSR1, NULL, PIDFD_SIGNAL_THREAD));
    for (int i = 0; i < PATIENCE_MS / 5 && !__atomic_load_n(&worker->signals, __ATOMIC_SEQ_CST); i++)
        fidelity_sleep_ms(5);
    CHECK(worker->signals == 1, "%s got %d signals", what, worker->signals);
    __atomic_store_n(&worker->end, true, __ATOMIC_SEQ_CST);
    CHECK(has_ended(pidfd, PATIENCE_MS), "%s does not end", what);
}

/* Has a thread of its own, and the pidfd of one of its parent by inheritance. */
static void __attribute__((noreturn)) other_process(int inherited)
{
    start(&workers[1]);
    fidelity_await_go();
    CHECK(has_ended(inherited, PATIENCE_MS), "the inherited pidfd does not tell that its thread has ended");
    pthread_join(workers[1].thread, NULL);
    _exit(0);
}

int main(void)
{
    workers = MUST(mmap(NULL, 3 * sizeof *workers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    signal(SIGUSR1, on_signal);
    start(&workers[0]);
    int own = open_thread(&workers[0], O_NONBLOCK);
    int twice = MUST(fcntl(own, F_DUPFD, OTHER_NUMBER));
    pid_t child = fidelity_fork();
    if (child == 0)
        other_process(own);
    while (!__atomic_load_n(&workers[1].tid, __ATOMIC_SEQ_CST))
        fidelity_sleep_ms(1);
    int of_other = open_thread(&workers[1], 0);
    start(&workers[2]);
    int ended = open_thread(&workers[2], 0);
    workers[2].end = true;
    pthread_join(workers[2].thread, NULL);
    int own_flags = MUST(fcntl(own, F_GETFL));

    fidelity_ready();
    fidelity_await_go();
    CHECK(fcntl(own, F_GETFL) == own_flags && fcntl(own, F_GETFD) == FD_CLOEXEC && fcntl(twice, F_GETFD) == 0, "flags %x, %x, %x", fcntl(own, F_GETFL),
          fcntl(own, F_GETFD), fcntl(twice, F_GETFD));
    CHECK(syscall(SYS_kcmp, getpid(), getpid(), 0 /* KCMP_FILE */, own, twice) == 0, "a duplicate is a file of its own");
    CHECK(has_ended(ended, 0), "the thread that has ended seems to be alive");
    CHECK(syscall(SYS_pidfd_send_signal, ended, 0, NULL, PIDFD_SIGNAL_THREAD) < 0 && errno == ESRCH, "it can be signalled");
    check(own, &workers[0], "the own thread");
    CHECK(has_ended(twice, 0), "a duplicate of its pidfd differs");
    check(of_other, &workers[1], "the other process's thread");
    fidelity_expect_exit(child, 0);
    fidelity_pass();
}
