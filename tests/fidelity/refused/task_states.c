/* task_states MODE: a process in a state that a fork refuses (dispatch, segments, memory, memories, vdso, traced, thread_pidfd, thread_place, thread_places, thread_table, thread_network), that hurries (storm), that waits (waits), has many signals pending (queued), or ends as soon as it can (ends). */
#include "../programs/fidelity.h"

#include <asm/ldt.h>
#include <linux/prctl.h>
#include <pthread.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ptrace.h>

static char stack[65536] __attribute__((aligned(16)));

static int stay(void *unused)
{
    (void)unused;
    for (;;)
        syscall(SYS_pause);
    return 0;
}

static volatile bool gone_elsewhere;

/* A thread with a working directory of its own that was removed. */
static void *go_elsewhere(void *unused)
{
    (void)unused;
    MUST(mkdir("/tmp/elsewhere", 0755));
    MUST(unshare(CLONE_FS));
    MUST(chdir("/tmp/elsewhere"));
    MUST(rmdir("/tmp/elsewhere"));
    gone_elsewhere = true;
    stay(NULL);
    return NULL;
}

static void *stay_elsewhere(void *unused)
{
    (void)unused;
    gone_elsewhere = true;
    stay(NULL);
    return NULL;
}

/* Two threads that share a working directory with each other, and not with the first one. */
static void *go_elsewhere_with_another(void *unused)
{
    pthread_t other;
    MUST(unshare(CLONE_FS));
    CHECK(pthread_create(&other, NULL, stay_elsewhere, NULL) == 0, "no thread");
    stay(unused);
    return NULL;
}

/* A thread with a descriptor table of its own, in which another file has a number of the process's. */
static void *stay_with_own_table(void *unused)
{
    MUST(unshare(CLONE_FILES));
    MUST(dup2(MUST(open("/dev/zero", O_RDONLY)), 0));
    gone_elsewhere = true;
    stay(unused);
    return NULL;
}

static void *stay_in_own_network(void *unused)
{
    MUST(unshare(CLONE_NEWNET));
    gone_elsewhere = true;
    stay(unused);
    return NULL;
}

static void *stay_as_thread(void *tid)
{
    *(volatile int *)tid = (int)syscall(SYS_gettid);
    stay(NULL);
    return NULL;
}

#define QUEUED 8192            /* as many as a fork takes; the host allows its root some 90 000, which source and branch share */
#define MANY 200                /* threads (ends) */
#define PAIRS 12                /* of processes that share their memory (memories) */

static void *end_at_once(void *unused) { return unused; }

/* Forks, executes, ends and starts threads as fast as it can, for a minute at most. */
static void storm(void)
{
    double end = fidelity_now(CLOCK_MONOTONIC) + 60;
    /* In memory: a register may not keep it where vfork() returns twice. */
    for (volatile int round = 0; fidelity_now(CLOCK_MONOTONIC) < end; round++) {
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

/* QUEUED signals with a value each, for a thread that has all of them blocked and waits where an interruption shows. */
static void queue_signals(int more)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    for (int i = 0; i < QUEUED + more; i++)
        CHECK(sigqueue(getpid(), SIGRTMIN + 1, (union sigval){ .sival_int = i }) == 0, "signal %d: %s", i, strerror(errno));
    int set = MUST(epoll_create1(0));
    struct epoll_event event = { .events = EPOLLIN };
    int in = MUST(inotify_init1(IN_NONBLOCK));
    MUST(inotify_add_watch(in, FIDELITY_DIRECTORY, IN_MOVED_TO));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, in, &event));
    fidelity_ready();
    while (!fidelity_may_go())
        MUST(epoll_wait(set, &event, 1, -1));
    for (int i = 0; i < QUEUED; i++) {
        siginfo_t info;
        struct timespec none = { 0 };
        int number = sigtimedwait(&all, &info, &none);
        CHECK(number == SIGRTMIN + 1 && info.si_value.sival_int == i, "signal %d: number %d, value %d", i, number, info.si_value.sival_int);
    }
    fidelity_pass();
}

static void *stand(void *unused)
{
    stay(unused);
    return unused;
}

static void *spin(void *unused)
{
    for (;;)
        getppid();
    return unused;
}

/* Its first thread ends the process, and MANY threads with it, as soon as it sees that it is in a branch: while the others are being let go. */
static void end_in_branch(void)
{
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < MANY; i++)
        CHECK(pthread_create(&thread, &small, i % 64 ? stand : spin, NULL) == 0, "no thread");
    while (access(FIDELITY_DIRECTORY "in-branch", F_OK) < 0)
        ;
    syscall(SYS_exit_group, 0);
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
    if (strcmp(mode, "segments") == 0) {
        struct user_desc entry = { .entry_number = 3, .limit = 0xfff, .seg_32bit = 1 };
        MUST((int)syscall(SYS_modify_ldt, 0x11, &entry, sizeof entry));
        fidelity_ready();
    } else if (strcmp(mode, "dispatch") == 0) {
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
    } else if (strcmp(mode, "queued") == 0) {
        queue_signals(0);
    } else if (strcmp(mode, "queued_more") == 0) {
        queue_signals(QUEUED);
    } else if (strcmp(mode, "ends") == 0) {
        for (int i = 0; i < 3; i++)
            if (fidelity_fork() == 0)
                end_in_branch();
        fidelity_sleep_ms(500);
        fidelity_ready();
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
        int set = MUST(epoll_create1(0)), pidfd = MUST((int)syscall(SYS_pidfd_open, tid, O_EXCL));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, pidfd, &(struct epoll_event){ .events = EPOLLIN }));
        fidelity_ready();
    } else if (strcmp(mode, "thread_place") == 0 || strcmp(mode, "thread_places") == 0) {
        pthread_t thread;
        bool two = strcmp(mode, "thread_places") == 0;
        CHECK(pthread_create(&thread, NULL, two ? go_elsewhere_with_another : go_elsewhere, NULL) == 0, "no thread");
        while (!gone_elsewhere)
            fidelity_sleep_ms(1);
        fidelity_ready();
    } else if (strcmp(mode, "thread_table") == 0 || strcmp(mode, "thread_network") == 0) {
        pthread_t thread;
        bool network = strcmp(mode, "thread_network") == 0;
        if (network)
            MUST(unshare(CLONE_NEWUSER));
        CHECK(pthread_create(&thread, NULL, network ? stay_in_own_network : stay_with_own_table, NULL) == 0, "no thread");
        while (!gone_elsewhere)
            fidelity_sleep_ms(1);
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
