/* POSIX timers that were to signal a thread which has ended: they are still there by their ids, run on, and tell nobody. */
#include "fidelity.h"

#include <pthread.h>

#define PERIOD 0.25
#define FAR 3600.0

static volatile int signals;
static int once, often, unarmed;

static void on_signal(int signal)
{
    (void)signal;
    signals++;
}

static int create(int thread)
{
    struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN + 1 };
    event._sigev_un._tid = thread;
    int id;
    MUST((int)syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &id));
    return id;
}

static void *make(void *unused)
{
    (void)unused;
    int tid = (int)syscall(SYS_gettid);
    once = create(tid);
    often = create(tid);
    unarmed = create(tid);
    return NULL;
}

static double left(int id)
{
    struct itimerspec spec;
    MUST((int)syscall(SYS_timer_gettime, id, &spec));
    return (double)spec.it_value.tv_sec + (double)spec.it_value.tv_nsec / 1e9;
}

int main(void)
{
    signal(SIGRTMIN + 1, on_signal);
    pthread_t thread;
    pthread_create(&thread, NULL, make, NULL);
    pthread_join(thread, NULL);
    double start = fidelity_now(CLOCK_MONOTONIC);
    struct itimerspec spec = { .it_value.tv_sec = (time_t)FAR };
    MUST((int)syscall(SYS_timer_settime, once, 0, &spec, NULL));
    spec = (struct itimerspec){ { 0, (long)(PERIOD * 1e9) }, { 0, (long)(PERIOD * 1e9) } };
    MUST((int)syscall(SYS_timer_settime, often, 0, &spec, NULL));
    fidelity_sleep_ms(300);     /* a period has ended, and nobody was told */

    fidelity_ready();
    fidelity_await_go();
    double remaining = left(once), passed = fidelity_now(CLOCK_MONOTONIC) - start;
    CHECK(remaining > FAR - passed - 1 && remaining <= FAR, "%f s left of %f after %f", remaining, FAR, passed);
    for (int i = 0; i < 5; i++) {
        remaining = left(often);
        CHECK(remaining > 0 && remaining <= PERIOD, "%f s left of a period of %f", remaining, PERIOD);
        fidelity_sleep_ms(70);
    }
    CHECK(left(unarmed) == 0, "a timer that was never set runs");
    CHECK(signals == 0, "%d signals for a thread that has ended", signals);
    spec = (struct itimerspec){ .it_value.tv_sec = 1800 };
    MUST((int)syscall(SYS_timer_settime, unarmed, 0, &spec, NULL));
    remaining = left(unarmed);
    CHECK(remaining > 1700 && remaining <= 1800, "set anew it has %f s left", remaining);
    MUST((int)syscall(SYS_timer_delete, once));
    MUST((int)syscall(SYS_timer_delete, often));
    MUST((int)syscall(SYS_timer_delete, unarmed));
    fidelity_pass();
}
