/*
 * Futexes whose state the kernel shares with memory: robust and priority-inheriting mutexes, private and in /dev/shm; owners that end, waiters that the
 * fork meets blocked, and conditions between processes.
 */
#include "fidelity.h"

#include <linux/futex.h>
#include <pthread.h>

#define WAITERS 3
#define PATIENCE 30             /* seconds */

/* In a file of /dev/shm, which two processes map. */
struct shared {
    pthread_mutex_t robust, robust_pi, plain_pi;
    pthread_mutex_t condition_mutex;
    pthread_cond_t condition;
    int told, holding, blocked_pi, results[WAITERS];
    uint32_t word, requeue_from, requeue_to;
};

static struct shared *shared;
static pthread_mutex_t private_pi, private_robust_pi;
static volatile int held;
static int got[WAITERS];

/* For the calls of libpthread, which return the error. */
static void zero(int error)
{
    CHECK(error == 0, "%s", strerror(error));
}

static void init(pthread_mutex_t *mutex, bool robust, bool inherit, bool between)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, robust ? PTHREAD_MUTEX_ROBUST : PTHREAD_MUTEX_STALLED);
    pthread_mutexattr_setprotocol(&attributes, inherit ? PTHREAD_PRIO_INHERIT : PTHREAD_PRIO_NONE);
    pthread_mutexattr_setpshared(&attributes, between ? PTHREAD_PROCESS_SHARED : PTHREAD_PROCESS_PRIVATE);
    zero(pthread_mutex_init(mutex, &attributes));
}

static void await(volatile int *word, int wanted)
{
    double end = fidelity_now(CLOCK_MONOTONIC) + PATIENCE;
    while (*word < wanted) {
        CHECK(fidelity_now(CLOCK_MONOTONIC) < end, "%d of %d got there", *word, wanted);
        fidelity_sleep_ms(5);
    }
}

/* By the kernel's own account of where a task sleeps; wchan may be hidden, then what it is: asleep. */
static void await_asleep(pid_t tid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", tid);
    for (int i = 0; i < PATIENCE * 200; i++) {
        if (strrchr(fidelity_file(path), ')')[2] == 'S')
            return;
        fidelity_sleep_ms(5);
    }
    fidelity_fail("task %d does not come to rest", tid);
}

/* Ends with everything locked, once it is told to go. */
static void __attribute__((noreturn)) owner(void)
{
    if (pthread_mutex_lock(&shared->robust) || pthread_mutex_lock(&shared->robust_pi) || pthread_mutex_lock(&shared->plain_pi))
        _exit(10);
    shared->holding = 1;
    fidelity_await_go();
    _exit(pthread_mutex_unlock(&shared->plain_pi) ? 11 : 0);
}

/* 0, 1: meet the end of the owner. 2: gets the mutex from its living owner. */
static void __attribute__((noreturn)) waiter(int which)
{
    pthread_mutex_t *const mutexes[WAITERS] = { &shared->robust, &shared->robust_pi, &shared->plain_pi };
    __atomic_add_fetch(&shared->blocked_pi, 1, __ATOMIC_SEQ_CST);
    int result = pthread_mutex_lock(mutexes[which]);
    shared->results[which] = result;
    if (result == EOWNERDEAD)
        result = pthread_mutex_consistent(mutexes[which]);
    _exit(result || pthread_mutex_unlock(mutexes[which]) ? 20 : 0);
}

static void __attribute__((noreturn)) wait_for_condition(void)
{
    if (pthread_mutex_lock(&shared->condition_mutex))
        _exit(30);
    __atomic_add_fetch(&shared->blocked_pi, 1, __ATOMIC_SEQ_CST);
    while (!shared->told)
        if (pthread_cond_wait(&shared->condition, &shared->condition_mutex))
            _exit(31);
    _exit(pthread_mutex_unlock(&shared->condition_mutex) ? 32 : 0);
}

/* A wait that is moved to a priority-inheriting futex when it is told. */
static void __attribute__((noreturn)) wait_to_be_requeued(void)
{
    __atomic_add_fetch(&shared->blocked_pi, 1, __ATOMIC_SEQ_CST);
    if (syscall(SYS_futex, &shared->requeue_from, FUTEX_WAIT_REQUEUE_PI, 0, NULL, &shared->requeue_to, 0) < 0)
        _exit(40);
    bool mine = (shared->requeue_to & FUTEX_TID_MASK) == (uint32_t)getpid();
    _exit(mine && syscall(SYS_futex, &shared->requeue_to, FUTEX_UNLOCK_PI, 0, NULL, NULL, 0) == 0 ? 0 : 41);
}

static void *hold_private(void *unused)
{
    zero(pthread_mutex_lock(&private_pi));
    zero(pthread_mutex_lock(&private_robust_pi));
    held = 1;
    fidelity_await_go();
    zero(pthread_mutex_unlock(&private_pi));
    return unused;              /* ends with the other one locked */
}

static volatile pid_t waiting_tid[2];

static void *wait_private(void *which)
{
    int index = which != NULL;
    waiting_tid[index] = (pid_t)syscall(SYS_gettid);
    pthread_mutex_t *mutex = index ? &private_robust_pi : &private_pi;
    got[index] = pthread_mutex_lock(mutex);
    if (got[index] == EOWNERDEAD)
        pthread_mutex_consistent(mutex);
    pthread_mutex_unlock(mutex);
    return NULL;
}

static void make_shared(void)
{
    int file = MUST(open("/dev/shm/futexes", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    MUST(ftruncate(file, sizeof *shared));
    shared = MUST(mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
    init(&shared->robust, true, false, true);
    init(&shared->robust_pi, true, true, true);
    init(&shared->plain_pi, false, true, true);
    init(&shared->condition_mutex, false, false, true);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    zero(pthread_cond_init(&shared->condition, &attributes));
    init(&private_pi, false, true, false);
    init(&private_robust_pi, true, true, false);
}

int main(void)
{
    make_shared();
    pid_t children[WAITERS + 3];
    children[0] = fidelity_fork();
    if (children[0] == 0)
        owner();
    await(&shared->holding, 1);
    for (int i = 0; i < WAITERS; i++)
        if ((children[1 + i] = fidelity_fork()) == 0)
            waiter(i);
    if ((children[WAITERS + 1] = fidelity_fork()) == 0)
        wait_for_condition();
    if ((children[WAITERS + 2] = fidelity_fork()) == 0)
        wait_to_be_requeued();
    pthread_t threads[3];
    zero(pthread_create(&threads[0], NULL, hold_private, NULL));
    await(&held, 1);
    zero(pthread_create(&threads[1], NULL, wait_private, NULL));
    zero(pthread_create(&threads[2], NULL, wait_private, (void *)&held));
    await(&shared->blocked_pi, WAITERS + 2);
    for (int i = 1; i < WAITERS + 3; i++)
        await_asleep(children[i]);
    for (int i = 0; i < 2; i++) {
        await(&waiting_tid[i], 1);
        await_asleep(waiting_tid[i]);
    }

    fidelity_ready();
    fidelity_await_go();
    pthread_mutex_lock(&shared->condition_mutex);
    shared->told = 1;
    pthread_cond_broadcast(&shared->condition);
    pthread_mutex_unlock(&shared->condition_mutex);
    long woken = syscall(SYS_futex, &shared->requeue_from, FUTEX_CMP_REQUEUE_PI, 1, (void *)0, &shared->requeue_to, 0);
    CHECK(woken == 1, "FUTEX_CMP_REQUEUE_PI met %ld waiters", woken);
    for (int i = 0; i < WAITERS + 3; i++)
        fidelity_expect_exit(children[i], 0);
    for (int i = 0; i < 3; i++)
        zero(pthread_join(threads[i], NULL));
    CHECK(shared->results[0] == EOWNERDEAD && shared->results[1] == EOWNERDEAD && shared->results[2] == 0, "between processes: %d, %d, %d",
          shared->results[0], shared->results[1], shared->results[2]);
    CHECK(got[0] == 0 && got[1] == EOWNERDEAD, "between threads: %d, %d", got[0], got[1]);
    CHECK(pthread_mutex_trylock(&shared->robust_pi) == 0 && pthread_mutex_trylock(&shared->plain_pi) == 0, "a mutex is still held");
    fidelity_pass();
}
