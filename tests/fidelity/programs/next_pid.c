/* Process ids that were given out and are free again: in source and branch no new process gets one of them at once. */
#include "fidelity.h"

#define FORKED 200

static pid_t ended_child(void)
{
    pid_t child = fidelity_fork();
    if (child == 0)
        _exit(3);
    fidelity_expect_exit(child, 3);
    return child;
}

int main(void)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    pid_t last = 0;
    for (int i = 0; i < FORKED; i++)
        last = ended_child();

    fidelity_ready();
    fidelity_await_go();

    CHECK(kill(last, 0) < 0 && errno == ESRCH, "%d, which has ended, is somebody else's", last);
    pid_t next = ended_child();
    CHECK(next > last, "%d comes after %d", next, last);
    fidelity_pass();
}
