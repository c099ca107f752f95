/* task_states MODE: a process in a state that a fork refuses (dispatch, memory, memories, vdso, traced, thread_pidfd), that hurries (storm), or that waits (waits). */
#include "../programs/fidelity.h"

#include <linux/prctl.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/ptrace.h>

static char stack[65536] __attribute__((aligned(16)));

static int stay(void *unused)
{
    (void)unused;
    for (;;)
        syscall(SYS_pause);
    return 0;
}

static void *stay_as_thread(void *tid)
{
    *(volatile int *)tid = (int)syscall(SYS_gettid);
    stay(NULL);
    return NULL;
}

#define PAIRS 12                /* of processes that share their memory (memories) */

static void *end_at_once(void *unused) { return unused; }

/* Forks, executes, ends and starts threads as fast as it can, for a minute at most. */
static void storm(void)
{
    double end = fidelity_now(CLOCK_MONOTONIC) + 60;
    for (int round = 0; fidelity_now(CLOCK_MONOTONIC) < end; round++) {
        pid_t child = round % 3 == 0 ? vfork() : fork();
        if (child == 0) {
            if (round % 3 < 2)
                execl("/bin/busybox", "busybox", "true", (char *)NULL);
            _exit(0);
        }
        pthread_t thread;
        if (pthread_create(&thread, NULL, end_at_once, NULL) == 0)
            pthread_join(thread, NULL);
        while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    _exit(0);
}

/* Relative waits that tell nobody what is left of them; each says how long it took by the monotonic clock. */
static void *wait_relatively(void *argument)
{
    long what = (long)argument;
    struct timespec time = { 8, 0 };
    uint32_t word = 0;
    double start = fidelity_now(CLOCK_MONOTONIC);
    if (what == 0)
        nanosleep(&time, NULL);
    if (what == 1)
        poll(NULL, 0, 8000);
    if (what == 2)
        syscall(SYS_futex, &word, 0 /* FUTEX_WAIT */, 0, &time, NULL, 0);
    char name[16], text[32];
    snprintf(name, sizeof name, "waited-%ld", what);
    snprintf(text, sizeof text, "%.3f", fidelity_now(CLOCK_MONOTONIC) - start);
    fidelity_write(name, text);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    mkdir(FIDELITY_DIRECTORY, 0777);
    if (strcmp(mode, "dispatch") == 0) {
        fidelity_ready();
        static char selector = 0;
        MUST(prctl(59 /* PR_SET_SYSCALL_USER_DISPATCH */, 1, 0, 0, &selector));
    } else if (strcmp(mode, "memory") == 0) {
        MUST(clone(stay, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL));
        fidelity_ready();
    } else if (strcmp(mode, "vdso") == 0) {
        char *vdso = (char *)getauxval(AT_SYSINFO_EHDR);
        fidelity_ready();
        MUST(mprotect(vdso, 8192, PROT_NONE));
    } else if (strcmp(mode, "memories") == 0) {
        for (int i = 0; i < PAIRS; i++) {
            if (fidelity_fork())
                continue;
            MUST(clone(stay, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL));
            stay(NULL);
        }
        fidelity_sleep_ms(500);
        fidelity_ready();
    } else if (strcmp(mode, "traced") == 0) {
        pid_t child = fidelity_fork();
        if (child == 0)
            stay(NULL);
        MUST((int)ptrace(PTRACE_SEIZE, child, 0, 0));
        fidelity_ready();
    } else if (strcmp(mode, "thread_pidfd") == 0) {
        pthread_t thread;
        volatile int tid = 0;
        CHECK(pthread_create(&thread, NULL, stay_as_thread, (void *)&tid) == 0, "no thread");
        while (!tid)
            fidelity_sleep_ms(1);
        MUST((int)syscall(SYS_pidfd_open, tid, O_EXCL));
        fidelity_ready();
    } else if (strcmp(mode, "waits") == 0) {
        for (long i = 0; i < 3; i++) {
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, wait_relatively, (void *)i) == 0, "no thread");
        }
        fidelity_ready();
    } else {
        for (int i = 0; i < 3; i++)
            if (fidelity_fork() == 0)
                storm();
        fidelity_ready();
    }
    stay(NULL);
}
