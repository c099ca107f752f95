/* The plainest case: a process that counts goes on from the same number, with the same pid, and does not skip or repeat. */
#include "fidelity.h"

int main(void)
{
    pid_t pid = getpid(), parent = getppid(), session = getsid(0);
    volatile long count = 0;
    fidelity_ready();
    double before = fidelity_now(CLOCK_MONOTONIC);
    while (!fidelity_may_go()) {
        count++;
        fidelity_sleep_ms(1);
        double now = fidelity_now(CLOCK_MONOTONIC);
        CHECK(now >= before, "the clock went back by %f s", before - now);
        before = now;
    }
    CHECK(count > 0, "counted nothing");
    CHECK(getpid() == pid && (pid_t)syscall(SYS_getpid) == pid, "pid changed from %d to %d", pid, getpid());
    CHECK(getppid() == parent, "parent changed from %d to %d", parent, getppid());
    CHECK(getsid(0) == session, "session changed from %d to %d", session, getsid(0));
    fidelity_pass();
}
