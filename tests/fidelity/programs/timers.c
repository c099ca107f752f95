/* setitimer, POSIX timers (ids, targets, periods) and timerfds go on: due at the same instant, neither early nor twice. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/timerfd.h>

#define TOLERANCE 0.25          /* seconds; a loaded machine */

static volatile int alarms, thread_signals, periodic, value_seen, signalled_thread;

static void on_alarm(int signal) { (void)signal; alarms++; }
static void on_thread(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    thread_signals++;
    value_seen = info->si_value.sival_int;
    signalled_thread = (int)syscall(SYS_gettid);
}
static void on_period(int signal) { (void)signal; periodic++; }

static volatile int other_tid;
static void *other(void *unused)
{
    (void)unused;
    other_tid = (int)syscall(SYS_gettid);
    for (;;)
        fidelity_sleep_ms(1000);
    return NULL;
}

static timer_t create(clockid_t clock, int notify, int signal, int value, int thread)
{
    struct sigevent event = { .sigev_notify = notify, .sigev_signo = signal, .sigev_value.sival_int = value };
    event._sigev_un._tid = thread;
    int id;
    MUST((int)syscall(SYS_timer_create, clock, &event, &id));
    return (timer_t)(long)id;
}

static struct itimerspec in_seconds(double value, double period)
{
    return (struct itimerspec){ { (time_t)period, (long)((period - (double)(time_t)period) * 1e9) },
                                { (time_t)value, (long)((value - (double)(time_t)value) * 1e9) } };
}

int main(void)
{
    signal(SIGALRM, on_alarm);
    struct sigaction thread_action = { .sa_sigaction = on_thread, .sa_flags = SA_SIGINFO };
    sigaction(SIGRTMIN + 1, &thread_action, NULL);
    signal(SIGRTMIN + 2, on_period);
    pthread_t thread;
    pthread_create(&thread, NULL, other, NULL);
    while (!other_tid)
        fidelity_sleep_ms(1);

    timer_t unused = create(CLOCK_MONOTONIC, SIGEV_SIGNAL, SIGRTMIN + 2, 0, 0);     /* a gap in the ids */
    timer_t once = create(CLOCK_MONOTONIC, SIGEV_THREAD_ID, SIGRTMIN + 1, 4711, other_tid);
    timer_t often = create(CLOCK_BOOTTIME, SIGEV_SIGNAL, SIGRTMIN + 2, 0, 0);
    syscall(SYS_timer_delete, (int)(long)unused);
    double start = fidelity_now(CLOCK_MONOTONIC), due = start + 6;
    struct itimerspec spec = in_seconds(6, 0), period = in_seconds(0.2, 0.2), left;
    MUST((int)syscall(SYS_timer_settime, (int)(long)once, 0, &spec, NULL));
    MUST((int)syscall(SYS_timer_settime, (int)(long)often, 0, &period, NULL));
    struct itimerval real = { { 0, 0 }, { 6, 0 } };
    MUST(setitimer(ITIMER_REAL, &real, NULL));
    int armed = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)), expired = MUST(timerfd_create(CLOCK_REALTIME, 0));
    spec = in_seconds(6, 3);
    MUST(timerfd_settime(armed, 0, &spec, NULL));
    spec = in_seconds(0.001, 0);
    MUST(timerfd_settime(expired, 0, &spec, NULL));
    int idle = MUST(timerfd_create(CLOCK_BOOTTIME, 0));
    struct pollfd wait_expired = { expired, POLLIN, 0 };
    poll(&wait_expired, 1, 1000);

    fidelity_ready();
    fidelity_await_go();
    uint64_t ticks;
    CHECK(read(expired, &ticks, sizeof ticks) == sizeof ticks && ticks == 1, "the expired timerfd tells %lu ticks", ticks);
    MUST(timerfd_gettime(idle, &left));
    CHECK(left.it_value.tv_sec == 0 && left.it_value.tv_nsec == 0, "a timerfd that was never armed is armed");
    int before = periodic;
    double now = fidelity_now(CLOCK_MONOTONIC);
    while (fidelity_now(CLOCK_MONOTONIC) < now + 1)
        fidelity_sleep_ms(50);
    CHECK(periodic - before >= 3 && periodic - before <= 7, "%d periods of 0.2 s in a second", periodic - before);
    if (fidelity_now(CLOCK_MONOTONIC) < due - TOLERANCE) {
        CHECK(alarms == 0 && thread_signals == 0, "a timer came early (%d, %d)", alarms, thread_signals);
        CHECK(read(armed, &ticks, sizeof ticks) == -1 && errno == EAGAIN, "the timerfd expired early");
        MUST((int)syscall(SYS_timer_gettime, (int)(long)once, &left));
        double remaining = (double)left.it_value.tv_sec + (double)left.it_value.tv_nsec / 1e9;
        double expected = due - fidelity_now(CLOCK_MONOTONIC);
        CHECK(remaining > expected - TOLERANCE && remaining < expected + TOLERANCE, "%f s left, expected %f", remaining, expected);
    }
    while (fidelity_now(CLOCK_MONOTONIC) < due + TOLERANCE)
        fidelity_sleep_ms(20);
    CHECK(alarms == 1, "SIGALRM came %d times", alarms);
    CHECK(thread_signals == 1 && value_seen == 4711 && signalled_thread == other_tid, "the thread's timer: %d signals, value %d, thread %d",
          thread_signals, value_seen, signalled_thread);
    CHECK(read(armed, &ticks, sizeof ticks) == sizeof ticks && ticks >= 1, "the timerfd did not expire");
    MUST(timerfd_gettime(armed, &left));
    CHECK(left.it_interval.tv_sec == 3, "the timerfd lost its period");
    fidelity_pass();
}
