/* As many supplementary groups as the kernel allows, with long numbers: of a process, of one of its threads that has fewer, of a zombie. */
#include "fidelity.h"

#include <grp.h>
#include <pthread.h>

#define MOST 65536              /* NGROUPS_MAX */
#define FIRST 4000000000u
#define FEWER 9000

static gid_t wanted[MOST], found[MOST];
static int thread_count = -1;
static bool thread_same;

static void compare(int count, const char *who)
{
    int got = MUST(getgroups(MOST, found));
    CHECK(got == count, "%s has %d groups, not %d", who, got, count);
    CHECK(memcmp(found, wanted, (size_t)count * sizeof(gid_t)) == 0, "%s has other groups", who);
}

/* A thread whose groups are its own: the C library's setgroups would set those of all. */
static void *fewer(void *unused)
{
    static gid_t mine[MOST];
    (void)unused;
    MUST((int)syscall(SYS_setgroups, FEWER, wanted));
    thread_count = 0;
    fidelity_await_go();
    thread_count = (int)syscall(SYS_getgroups, MOST, mine);
    thread_same = memcmp(mine, wanted, FEWER * sizeof(gid_t)) == 0;
    return NULL;
}

int main(void)
{
    for (int i = 0; i < MOST; i++)
        wanted[i] = FIRST + (gid_t)i;
    MUST(setgroups(MOST, wanted));
    pid_t zombie = fidelity_fork();
    if (zombie == 0)
        _exit(7);
    siginfo_t info;
    MUST(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT));
    pthread_t thread;
    pthread_create(&thread, NULL, fewer, NULL);
    while (thread_count < 0)
        fidelity_sleep_ms(1);

    fidelity_ready();
    fidelity_await_go();
    compare(MOST, "the process");
    pthread_join(thread, NULL);
    CHECK(thread_count == FEWER && thread_same, "the thread has %d groups, not %d, or others", thread_count, FEWER);
    fidelity_expect_exit(zombie, 7);
    fidelity_pass();
}
