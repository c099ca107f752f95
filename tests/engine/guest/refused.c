/*
 * Holds things that cannot be forked: `refused NAME…` makes each, prints a line "NAME FD" or "NAME -ERRNO" for it, and sleeps.
 * `name=TEXT` calls the process TEXT instead.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/io_uring.h>
#include <linux/landlock.h>
#include <linux/perf_event.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

static int make_io_uring(void)
{
    struct io_uring_params parameters = { 0 };
    return (int)syscall(SYS_io_uring_setup, 4, &parameters);
}

static int make_bpf(void)
{
    union bpf_attr map = { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1 };
    return (int)syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof map);
}

static int make_perf(void)
{
    struct perf_event_attr event = {
        .type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_TASK_CLOCK, .exclude_kernel = 1, .exclude_hv = 1,
    };
    return (int)syscall(SYS_perf_event_open, &event, 0, -1, -1, 0);
}

static int make_userfaultfd(void)
{
    return (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
}

static int make_fuse(void)
{
    return open("/dev/fuse", O_RDWR);
}

static int make_landlock(void)
{
    struct landlock_ruleset_attr rules = { .handled_access_fs = LANDLOCK_ACCESS_FS_MAKE_SOCK };
    return (int)syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0);
}

/* Supervises nothing that this program does. */
static int make_seccomp_listener(void)
{
    struct sock_filter code[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog program = { 1, code };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

/* A debugger and its program in one: the child's pid instead of a descriptor. A child is listed under the thread that forked it. */
static void *fork_traced(void *pid)
{
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_NAME, "traced");
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        for (;;)
            pause();
    }
    *(volatile pid_t *)pid = child;
    while (pause())
        ;
    return NULL;
}

static int make_traced_by_thread(void)
{
    static volatile pid_t child;
    pthread_t thread;
    pthread_create(&thread, NULL, fork_traced, (void *)&child);
    while (!child)
        usleep(1000);
    return child;
}

static const struct { const char *name; int (*make)(void); } things[] = {
    { "io_uring", make_io_uring }, { "bpf", make_bpf }, { "perf", make_perf }, { "userfaultfd", make_userfaultfd }, { "fuse", make_fuse },
    { "landlock", make_landlock }, { "seccomp_listener", make_seccomp_listener }, { "traced_by_thread", make_traced_by_thread },
};

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "name=", 5) == 0)
            prctl(PR_SET_NAME, argv[i] + 5);
        for (size_t j = 0; j < sizeof things / sizeof *things; j++) {
            if (strcmp(argv[i], things[j].name) != 0)
                continue;
            int fd = things[j].make();
            printf("%s %d\n", argv[i], fd < 0 ? -errno : fd);
        }
    }
    puts("done");
    fflush(stdout);
    for (;;)
        pause();
}
