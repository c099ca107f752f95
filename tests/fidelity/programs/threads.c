/* Threads: their ids, names, thread-local storage, signal masks, CPU registers (also wide ones), and a robust mutex whose owner died. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/resource.h>

#define THREADS 6

static _Thread_local unsigned long local_value;
static pthread_barrier_t started;
static pthread_mutex_t robust;
static volatile int failures[THREADS];
static volatile unsigned long counters[THREADS];

/* Keep a pattern in the sixteen xmm registers until the go file is there; the loop itself uses only integer registers. */
static int spin_with_registers(uint64_t seed, volatile unsigned long *counter)
{
    uint64_t in[4] = { seed, ~seed, seed * 3, seed ^ 0xa5a5a5a5a5a5a5a5ul }, out[4];
    double end = fidelity_now(CLOCK_MONOTONIC) + FIDELITY_SPIN_SECONDS;
    while (fidelity_now(CLOCK_MONOTONIC) < end && !fidelity_may_go()) {
        __asm__ volatile(
            "movdqu (%1), %%xmm8\n movdqu 16(%1), %%xmm15\n"
            "mov $20000000, %%rcx\n"
            "1: incq (%2)\n dec %%rcx\n jnz 1b\n"
            "movdqu %%xmm8, (%0)\n movdqu %%xmm15, 16(%0)\n"
            :
            : "r"(out), "r"(in), "r"(counter)
            : "rcx", "xmm8", "xmm15", "memory", "cc");
        if (memcmp(in, out, sizeof in) != 0)
            return 1;
    }
    return 0;
}

static void *run(void *argument)
{
    long index = (long)argument;
    char name[16], now[16] = "";
    pid_t tid = (pid_t)syscall(SYS_gettid);
    local_value = 0x1000ul + (unsigned long)index;
    snprintf(name, sizeof name, "worker-%ld", index);
    prctl(PR_SET_NAME, name);
    sigset_t mask, mask_now;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + (int)index);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
    pthread_barrier_wait(&started);
    int bad = 0;
    if (index == 0) {
        setpriority(PRIO_PROCESS, (id_t)tid, 19);       /* it spins, and many programs share the machine */
        bad |= spin_with_registers(0x0123456789abcdeful, &counters[0]);
    }
    while (!fidelity_may_go() || counters[index] == 0) {
        counters[index]++;
        fidelity_sleep_ms(1);
    }
    prctl(PR_GET_NAME, now);
    pthread_sigmask(SIG_SETMASK, NULL, &mask_now);
    bad |= local_value != 0x1000ul + (unsigned long)index ? 2 : 0;
    bad |= (pid_t)syscall(SYS_gettid) != tid ? 4 : 0;
    bad |= strcmp(name, now) ? 8 : 0;
    bad |= sigismember(&mask_now, SIGRTMIN + (int)index) != 1 ? 16 : 0;
    bad |= counters[index] == 0 ? 32 : 0;
    failures[index] = bad;
    return NULL;
}

static void *hold_and_wait(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&robust);
    pthread_barrier_wait(&started);
    fidelity_await_go();
    return NULL;                /* ends with the mutex locked */
}

int main(void)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attributes);
    pthread_barrier_init(&started, NULL, THREADS + 2);
    pthread_t threads[THREADS + 1];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)i);
    pthread_create(&threads[THREADS], NULL, hold_and_wait, NULL);
    pthread_barrier_wait(&started);
    fidelity_ready();
    fidelity_await_go();
    for (int i = 0; i <= THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0, "thread %d cannot be joined", i);
    for (int i = 0; i < THREADS; i++)
        CHECK(failures[i] == 0, "thread %d: failure mask %d", i, failures[i]);
    CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD, "the robust mutex does not tell that its owner ended");
    fidelity_pass();
}
