/* One process that was the last to change hundreds of semaphores, all to be undone, and has a thousand timers: each of them is asked for inside it. */
#include "fidelity.h"

#include <sys/sem.h>

#define SEMAPHORES 250
#define TIMERS 1000
#define FAR 100000              /* seconds: never due here */

static int timers[TIMERS];

/* How many the limit on signals lets it have. */
static int make_timers(void)
{
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN };
    for (int i = 0; i < TIMERS; i++) {
        struct itimerspec spec = { { i, 0 }, { FAR + i, 0 } };
        if (syscall(SYS_timer_create, CLOCK_MONOTONIC, &event, &timers[i]) < 0)
            return i;
        MUST((int)syscall(SYS_timer_settime, timers[i], 0, &spec, NULL));
    }
    return TIMERS;
}

static void __attribute__((noreturn)) hold(int set, int ready)
{
    for (int i = 0; i < SEMAPHORES; i++) {
        struct sembuf up = { (unsigned short)i, 2, SEM_UNDO };
        MUST(semop(set, &up, 1));
    }
    int count = make_timers();
    MUST((int)write(ready, &count, sizeof count));
    fidelity_await_go();
    for (int i = 0; i < count; i++) {
        struct itimerspec left;
        MUST((int)syscall(SYS_timer_gettime, timers[i], &left));
        CHECK(left.it_interval.tv_sec == i && left.it_value.tv_sec <= FAR + i && left.it_value.tv_sec > FAR + i - 1000, "timer %d: %ld s, every %ld", i,
              left.it_value.tv_sec, left.it_interval.tv_sec);
    }
    _exit(0);
}

int main(void)
{
    int ready[2], count = 0, set = MUST(semget(IPC_PRIVATE, SEMAPHORES, 0600));
    MUST(pipe(ready));
    pid_t child = fidelity_fork();
    if (child == 0)
        hold(set, ready[1]);
    MUST((int)read(ready[0], &count, sizeof count));
    CHECK(count > 500, "only %d timers can be made", count);
    fidelity_ready();
    fidelity_await_go();
    fidelity_expect_exit(child, 0);
    for (int i = 0; i < SEMAPHORES; i++)
        CHECK(semctl(set, i, GETVAL) == 0, "semaphore %d is %d after its holder's end", i, semctl(set, i, GETVAL));
    MUST(semctl(set, 0, IPC_RMID));
    fidelity_pass();
}
