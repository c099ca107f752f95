/*
 * A signalfd in an epoll set, as PostgreSQL waits: the kernel ties the two by the process that put the one into the other, so only if that was the owner
 * does a later signal wake it. Two owners, each made by a fork.
 */
#include "fidelity.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>

#define OWNERS 2
#define PATIENCE_MS 20000

struct shared { volatile int waiting[OWNERS], woken[OWNERS]; };

static _Noreturn void own(struct shared *shared, int number)
{
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGURG);
    MUST(sigprocmask(SIG_BLOCK, &mask, NULL));
    int signals = MUST(signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC)), set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = { .events = EPOLLIN };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, signals, &event));
    shared->waiting[number] = 1;
    for (;;) {
        struct signalfd_siginfo got;
        if (epoll_wait(set, &event, 1, -1) == 1 && read(signals, &got, sizeof got) == sizeof got)
            shared->woken[number]++;
    }
}

static void check_wakes(struct shared *shared, const pid_t *owners, const char *when)
{
    for (int i = 0; i < OWNERS; i++) {
        int before = shared->woken[i];
        MUST(kill(owners[i], SIGURG));
        for (int waited = 0; shared->woken[i] == before; waited += 10) {
            CHECK(waited < PATIENCE_MS, "%s: a signal does not wake the owner %d", when, i);
            fidelity_sleep_ms(10);
        }
    }
}

int main(void)
{
    struct shared *shared = MUST(mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t owners[OWNERS];
    for (int i = 0; i < OWNERS; i++)
        if ((owners[i] = MUST(fork())) == 0)
            own(shared, i);
    for (int i = 0; i < OWNERS; i++)
        while (!shared->waiting[i])
            fidelity_sleep_ms(1);
    check_wakes(shared, owners, "before the fork");

    fidelity_ready();
    fidelity_await_go();

    check_wakes(shared, owners, "after the fork");
    for (int i = 0; i < OWNERS; i++)
        MUST(kill(owners[i], SIGKILL));
    fidelity_pass();
}
