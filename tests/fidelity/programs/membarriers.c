/* Registrations for membarrier: barriers that were registered for are there, others are not; several threads. */
#include "fidelity.h"

#include <linux/membarrier.h>
#include <pthread.h>

#ifndef MEMBARRIER_CMD_GET_REGISTRATIONS
#define MEMBARRIER_CMD_GET_REGISTRATIONS (1 << 9)
#endif

static int membarrier(int command)
{
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

static void *wait_for_go(void *unused)
{
    fidelity_await_go();
    return unused;
}

int main(void)
{
    pthread_t thread;
    MUST(-pthread_create(&thread, NULL, wait_for_go, NULL));
    MUST(membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED));
    MUST(membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED));
    int before = membarrier(MEMBARRIER_CMD_GET_REGISTRATIONS);
    fidelity_ready();
    fidelity_await_go();
    CHECK(membarrier(MEMBARRIER_CMD_GET_REGISTRATIONS) == before, "registrations differ");
    if (before < 0)
        fidelity_pass();        /* a kernel older than 6.3 does not tell */
    CHECK(membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0, "a barrier is refused: %s", strerror(errno));
    CHECK(membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE) < 0, "a barrier that was not registered for is granted");
    pthread_join(thread, NULL);
    fidelity_pass();
}
