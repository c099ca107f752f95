/*
 * Periodic interval timers whose signal nobody has taken yet: blocked, it is pending once, and the periods go on when it is taken; ignored, they have come to
 * an end. What they tell (getitimer) is the same on both sides.
 */
#include "fidelity.h"

#include <sys/time.h>

#define PERIOD_US 100000
#define PATIENCE 15             /* seconds, on a busy machine */

static volatile int alarms;

static void on_alarm(int signal)
{
    (void)signal;
    alarms++;
}

static void start(void)
{
    struct itimerval often = { { 0, PERIOD_US }, { 0, 1000 } };
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    fidelity_sleep_ms(50);
}

static void expect_waiting(const char *who)
{
    struct itimerval now;
    MUST(getitimer(ITIMER_REAL, &now));
    CHECK(now.it_value.tv_sec == 0 && now.it_value.tv_usec == 0, "%s: it runs, %ld us are left", who, (long)now.it_value.tv_usec);
    CHECK(now.it_interval.tv_sec == 0 && now.it_interval.tv_usec == PERIOD_US, "%s: its period is %ld us", who, (long)now.it_interval.tv_usec);
}

static void with_ignored(void)
{
    signal(SIGALRM, SIG_IGN);
    start();
    expect_waiting("ignored, before");
    fidelity_await_go();
    expect_waiting("ignored");
    signal(SIGALRM, on_alarm);
    fidelity_sleep_ms(400);
    CHECK(alarms == 0, "%d signals of a timer that had come to an end", alarms);
    start();
    CHECK(alarms > 0, "no signal once it was set anew");
    _exit(0);
}

static void with_blocked(void)
{
    sigset_t alarm_signal, pending;
    sigemptyset(&alarm_signal);
    sigaddset(&alarm_signal, SIGALRM);
    signal(SIGALRM, on_alarm);
    MUST(sigprocmask(SIG_BLOCK, &alarm_signal, NULL));
    start();
    expect_waiting("blocked, before");
    fidelity_ready();
    fidelity_await_go();
    expect_waiting("blocked");
    MUST(sigpending(&pending));
    CHECK(sigismember(&pending, SIGALRM), "SIGALRM is not pending");
    siginfo_t info;
    CHECK(sigwaitinfo(&alarm_signal, &info) == SIGALRM && info.si_code == SI_KERNEL, "SIGALRM came with the code %d", info.si_code);
    MUST(sigprocmask(SIG_UNBLOCK, &alarm_signal, NULL));
    double patience = fidelity_now(CLOCK_MONOTONIC) + PATIENCE;
    while (alarms < 3 && fidelity_now(CLOCK_MONOTONIC) < patience)
        fidelity_sleep_ms(20);
    CHECK(alarms >= 3, "%d periods of 0.1 s in %d s", alarms, PATIENCE);
}

int main(void)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    pid_t child = fidelity_fork();
    if (child == 0)
        with_ignored();
    with_blocked();
    fidelity_expect_exit(child, 0);
    fidelity_pass();
}
