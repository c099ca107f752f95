/*
 * Time namespaces: a process that has gone to live in its own, with timers on its clocks; one whose child alone lives there; one that has made one for
 * children still to come.
 */
#include "fidelity.h"

#include <sys/timerfd.h>

#define MEMBERS 4               /* lives there, parent of one, that child, has none yet */
#define AHEAD 100000            /* seconds that clocks are ahead in the first, twice that in the second … */
#define SLACK 60                /* seconds that pass between two looks at most */
#define LONG 5000               /* seconds until timers are due */

static struct shared {
    int ready;
    double now;                 /* the workspace's clock, told after "go" */
    bool told;
    char links[MEMBERS][2][64]; /* own, children's */
} *shared;

static void write_text(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY | O_CLOEXEC));
    MUST(write(fd, text, strlen(text)));
    close(fd);
}

static void make(int number)
{
    char text[96];
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWTIME));
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", "0 0 1");
    write_text("/proc/self/gid_map", "0 0 1");
    snprintf(text, sizeof text, "monotonic %d 250000000\nboottime %d 0\n", number * AHEAD, 2 * number * AHEAD);
    write_text("/proc/self/timens_offsets", text);
}

static void is_ready(int member)
{
    MUST(readlink("/proc/self/ns/time", shared->links[member][0], 63));
    MUST(readlink("/proc/self/ns/time_for_children", shared->links[member][1], 63));
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
}

/* By the vdso and by the kernel. */
static void check_clock(int number)
{
    while (!__atomic_load_n(&shared->told, __ATOMIC_SEQ_CST))
        fidelity_sleep_ms(5);
    double ahead = fidelity_now(CLOCK_MONOTONIC) - shared->now - number * (AHEAD + 0.0);
    CHECK(ahead > (number ? 0.25 : 0) && ahead < SLACK, "namespace %d is %.3f s ahead of %d", number, ahead, number * AHEAD);
    struct timespec now;
    MUST((int)syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now));
    double differs = fidelity_now(CLOCK_MONOTONIC) - ((double)now.tv_sec + (double)now.tv_nsec / 1e9);
    CHECK(differs >= 0 && differs < SLACK, "namespace %d: the vdso's clock is %.3f s ahead of the kernel's", number, differs);
    double boot = fidelity_now(CLOCK_BOOTTIME) - fidelity_now(CLOCK_MONOTONIC) - number * (AHEAD + 0.0);
    CHECK(boot > -1 && boot < SLACK, "namespace %d: the time since boot is %.3f s ahead", number, boot);
}

/* Of a timer that was to ring LONG seconds after `start`, by the clock of its namespace. */
static void check_left(const char *what, struct timespec left, double start)
{
    double expected = start + LONG - fidelity_now(CLOCK_MONOTONIC), is = (double)left.tv_sec + (double)left.tv_nsec / 1e9;
    CHECK(is > expected - 1 && is < expected + SLACK, "%s: %.3f s left, not %.3f", what, is, expected);
}

static void live_there(void)
{
    make(1);
    int there = MUST(open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC));
    MUST(setns(there, CLONE_NEWTIME));
    double start = fidelity_now(CLOCK_MONOTONIC);
    struct itimerspec relative = { .it_value.tv_sec = LONG }, absolute = { .it_value.tv_sec = (time_t)start + LONG }, left;
    int descriptor = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    timer_t timer;
    struct sigevent none = { .sigev_notify = SIGEV_NONE };
    MUST(timerfd_settime(descriptor, TFD_TIMER_ABSTIME, &absolute, NULL));
    MUST(timer_create(CLOCK_MONOTONIC, &none, &timer));
    MUST(timer_settime(timer, 0, &relative, NULL));
    is_ready(0);
    fidelity_await_go();
    check_clock(1);
    MUST(timerfd_gettime(descriptor, &left));
    check_left("timerfd", left.it_value, start);
    MUST(timer_gettime(timer, &left));
    check_left("timer", left.it_value, start);
    char own[64] = "";
    struct stat st;
    MUST(fstat(there, &st));
    snprintf(own, sizeof own, "time:[%lu]", (unsigned long)st.st_ino);
    char link[64] = "";
    MUST(readlink("/proc/self/ns/time", link, 63));
    CHECK(strcmp(own, link) == 0, "the descriptor is of %s, not %s", own, link);
}

static void fork_there(void)
{
    make(2);
    pid_t child = fidelity_fork();
    if (child == 0) {
        is_ready(2);
        fidelity_await_go();
        check_clock(2);
        _exit(0);
    }
    is_ready(1);
    fidelity_await_go();
    check_clock(0);
    fidelity_expect_exit(child, 0);
}

static void fork_later(void)
{
    make(3);
    is_ready(3);
    fidelity_await_go();
    check_clock(0);
    pid_t child = fidelity_fork();
    if (child == 0) {
        check_clock(3);
        _exit(0);
    }
    fidelity_expect_exit(child, 0);
}

int main(void)
{
    shared = MUST(mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    void (*const lives[])(void) = { live_there, fork_there, fork_later };
    pid_t children[3];
    if (access("/proc/self/ns/time", F_OK) < 0) {       /* a kernel without them */
        fidelity_ready();
        fidelity_await_go();
        fidelity_pass();
    }
    for (int i = 0; i < 3; i++) {
        children[i] = fidelity_fork();
        if (children[i] == 0) {
            lives[i]();
            _exit(0);
        }
    }
    while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < MEMBERS)
        fidelity_sleep_ms(5);
    char own[64] = "";
    MUST(readlink("/proc/self/ns/time", own, 63));
    CHECK(strcmp(shared->links[0][0], shared->links[0][1]) == 0 && strcmp(shared->links[0][0], own) != 0, "the first lives in %s", shared->links[0][0]);
    CHECK(strcmp(shared->links[1][0], own) == 0 && strcmp(shared->links[1][1], shared->links[2][0]) == 0, "the second's child lives in %s", shared->links[2][0]);

    fidelity_ready();
    fidelity_await_go();
    shared->now = fidelity_now(CLOCK_MONOTONIC);
    __atomic_store_n(&shared->told, true, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 3; i++)
        fidelity_expect_exit(children[i], 0);
    fidelity_pass();
}
