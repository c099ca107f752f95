/* POSIX timers and timerfds on each clock: what is left of them, their ids with gaps, periods, and which signal comes when they are due. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/time.h>
#include <sys/timerfd.h>

#define FAR 100000              /* seconds: never due here */
#define SLACK 60                /* seconds that the test may take */
#define CLOCKS 6

static const clockid_t clocks[CLOCKS] = { CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, 11 /* CLOCK_TAI */, CLOCK_PROCESS_CPUTIME_ID,
                                          CLOCK_THREAD_CPUTIME_ID };

static int create(clockid_t clock, int notify, int value)
{
    struct sigevent event = { .sigev_notify = notify, .sigev_signo = SIGRTMIN + 9, .sigev_value.sival_int = value };
    int id;
    MUST((int)syscall(SYS_timer_create, clock, &event, &id));
    return id;
}

static double seconds(struct timespec time)
{
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 9);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int ids[CLOCKS], relative[3], absolute[3];
    struct itimerspec spec = { { 7, 5 }, { FAR, 0 } }, now;
    for (int i = 0; i < CLOCKS; i++) {
        int gap = create(CLOCK_MONOTONIC, SIGEV_NONE, 0);
        ids[i] = create(clocks[i], i % 2 ? SIGEV_NONE : SIGEV_SIGNAL, i);
        MUST((int)syscall(SYS_timer_delete, gap));
        MUST((int)syscall(SYS_timer_settime, ids[i], 0, &spec, NULL));
    }
    for (int i = 0; i < 3; i++) {
        struct itimerspec until = spec;
        struct timespec start;
        clock_gettime(clocks[i], &start);
        until.it_value.tv_sec += start.tv_sec;
        relative[i] = MUST(timerfd_create(clocks[i], TFD_NONBLOCK));
        MUST(timerfd_settime(relative[i], 0, &spec, NULL));
        absolute[i] = MUST(timerfd_create(clocks[i], TFD_NONBLOCK));
        MUST(timerfd_settime(absolute[i], TFD_TIMER_ABSTIME | (i ? 0 : TFD_TIMER_CANCEL_ON_SET), &until, NULL));
    }
    int fast = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK));
    struct itimerspec millisecond = { { 0, 1000000 }, { 0, 1000000 } };
    double started = fidelity_now(CLOCK_MONOTONIC);
    MUST(timerfd_settime(fast, 0, &millisecond, NULL));
    struct itimerval virtual = { { 3, 0 }, { FAR, 0 } }, left;
    MUST(setitimer(ITIMER_VIRTUAL, &virtual, NULL));
    MUST(setitimer(ITIMER_PROF, &virtual, NULL));

    fidelity_ready();
    fidelity_await_go();
    double passed = fidelity_now(CLOCK_MONOTONIC) - started;
    uint64_t ticks = 0;
    CHECK(read(fast, &ticks, sizeof ticks) == sizeof ticks, "the timerfd of 1 ms has not expired");
    CHECK((double)ticks / 1000 > passed - 0.2 && (double)ticks / 1000 < passed + 5, "%lu ticks of 1 ms in %.3f s", ticks, passed);
    for (int i = 0; i < CLOCKS; i++) {
        MUST((int)syscall(SYS_timer_gettime, ids[i], &now));
        double rest = seconds(now.it_value), most = i < 4 ? FAR - passed + 0.2 : FAR + 0.1;
        CHECK(rest <= most && rest > FAR - SLACK - passed, "timer %d on clock %d: %.3f s left after %.3f", ids[i], clocks[i], rest, passed);
        CHECK(now.it_interval.tv_sec == 7 && now.it_interval.tv_nsec == 5, "timer %d lost its period", ids[i]);
    }
    for (int i = 0; i < 3; i++) {
        struct itimerspec of_absolute;
        MUST(timerfd_gettime(relative[i], &now));
        MUST(timerfd_gettime(absolute[i], &of_absolute));
        CHECK(seconds(now.it_value) <= FAR - passed + 0.2 && seconds(now.it_value) > FAR - SLACK - passed, "timerfd on clock %d: %.3f s left",
              clocks[i], seconds(now.it_value));
        CHECK(seconds(of_absolute.it_value) <= FAR - passed + 1.2 && seconds(of_absolute.it_value) > FAR - SLACK - passed,
              "timerfd with a deadline on clock %d: %.3f s left", clocks[i], seconds(of_absolute.it_value));
        char path[64];
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", absolute[i]);
        CHECK(strstr(fidelity_file(path), i ? "settime flags: 01\n" : "settime flags: 03\n"), "how it was set differs: %s", fidelity_file(path));
        snprintf(path, sizeof path, "/proc/self/fdinfo/%d", relative[i]);
        CHECK(strstr(fidelity_file(path), "settime flags: 00\n"), "how it was set differs: %s", fidelity_file(path));
    }
    MUST(getitimer(ITIMER_VIRTUAL, &left));
    CHECK(left.it_value.tv_sec > FAR - SLACK && left.it_value.tv_sec <= FAR && left.it_interval.tv_sec == 3, "ITIMER_VIRTUAL: %ld s left",
          left.it_value.tv_sec);
    MUST(getitimer(ITIMER_PROF, &left));
    CHECK(left.it_value.tv_sec > FAR - SLACK && left.it_value.tv_sec <= FAR, "ITIMER_PROF: %ld s left", left.it_value.tv_sec);
    spec = (struct itimerspec){ { 0, 0 }, { 0, 1000000 } };
    MUST((int)syscall(SYS_timer_settime, ids[2], 0, &spec, NULL));
    siginfo_t info;
    struct timespec wait = { 20, 0 };
    CHECK(sigtimedwait(&set, &info, &wait) == SIGRTMIN + 9 && info.si_value.sival_int == 2 && info.si_code == SI_TIMER, "the timer of clock %d does not ring",
          clocks[2]);
    int next = create(CLOCK_MONOTONIC, SIGEV_NONE, 0);
    for (int i = 0; i < CLOCKS; i++)
        CHECK(next != ids[i], "the new timer has an id that is taken");
    fidelity_pass();
}
