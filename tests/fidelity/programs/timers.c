/* setitimer, POSIX timers (ids, targets, periods) and timerfds go on: due at the same instant, neither early nor twice. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <sys/timerfd.h>

#define EARLY 0.05              /* seconds that clocks may differ by */
#define LATE 15                 /* seconds: a hundred programs on two cores may wait for a processor */

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
    double from = fidelity_now(CLOCK_MONOTONIC);
    while (periodic - before < 3 && fidelity_now(CLOCK_MONOTONIC) < from + LATE)
        fidelity_sleep_ms(50);
    int periods = periodic - before;
    double most = (fidelity_now(CLOCK_MONOTONIC) - from) / 0.2 + 2;
    CHECK(periods >= 3, "only %d periods of 0.2 s in %d s", periods, LATE);
    CHECK(periods <= most, "%d periods of 0.2 s, at most %.1f had time to pass", periods, most);
    MUST((int)syscall(SYS_timer_gettime, (int)(long)once, &left));
    double remaining = (double)left.it_value.tv_sec + (double)left.it_value.tv_nsec / 1e9;
    double expected = due - fidelity_now(CLOCK_MONOTONIC);      /* read later than the timer, so it is the smaller one */
    CHECK(remaining == 0 || (remaining > expected - EARLY && remaining < expected + LATE), "%f s left, expected %f", remaining, expected);
    struct itimerval real_left;
    MUST(getitimer(ITIMER_REAL, &real_left));
    remaining = (double)real_left.it_value.tv_sec + (double)real_left.it_value.tv_usec / 1e6;
    expected = due - fidelity_now(CLOCK_MONOTONIC);
    CHECK(remaining == 0 || (remaining > expected - EARLY && remaining < expected + LATE), "ITIMER_REAL: %f s left, expected %f", remaining, expected);
    bool expires = false;
    while (fidelity_now(CLOCK_MONOTONIC) < due - EARLY) {
        int signals = alarms + thread_signals;
        expires = read(armed, &ticks, sizeof ticks) == sizeof ticks;
        CHECK(fidelity_now(CLOCK_MONOTONIC) >= due - EARLY || (signals == 0 && !expires), "a timer came early (%d, %d, %d)", alarms, thread_signals,
              expires);
        fidelity_sleep_ms(20);
    }
    double patience = fidelity_now(CLOCK_MONOTONIC);    /* "go" itself may come after the timers are due */
    patience = (patience > due ? patience : due) + LATE;
    while ((!alarms || !thread_signals || !expires) && fidelity_now(CLOCK_MONOTONIC) < patience) {
        fidelity_sleep_ms(20);
        expires = expires || (read(armed, &ticks, sizeof ticks) == sizeof ticks && ticks >= 1);
    }
    fidelity_sleep_ms(300);     /* time for what must not come a second time */
    CHECK(alarms == 1, "SIGALRM came %d times", alarms);
    CHECK(thread_signals == 1 && value_seen == 4711 && signalled_thread == other_tid, "the thread's timer: %d signals, value %d, thread %d",
          thread_signals, value_seen, signalled_thread);
    CHECK(expires, "the timerfd did not expire");
    MUST(timerfd_gettime(armed, &left));
    CHECK(left.it_interval.tv_sec == 3, "the timerfd lost its period");
    fidelity_pass();
}
