/*
 * Cgroups made inside, in v1 hierarchies (where the host has them) and in the v2 tree: settings, modes, members, a thread that is not where its process is,
 * an open file of a group. Each side then changes a limit.
 */
#include "mounts.h"

#include <pthread.h>

#define MOUNT "/tmp/fidelity/groups-"
#define LEAF MOUNT "v2/tree/leaf/"
#define OUTER MOUNT "pids/outer/"
#define INNER OUTER "inner/"
#define CPUS MOUNT "cpuset/one/"

static bool have_pids, have_cpuset;
static int ready[2], release[2];
static bool thread_stayed;

static bool mount_groups(const char *name, const char *type, const char *options)
{
    char place[64];
    snprintf(place, sizeof place, MOUNT "%s", name);
    MUST(mkdir(place, 0755));
    return mount("groups", place, type, 0, options) == 0;
}

static void expect_text(const char *path, const char *wanted)
{
    const char *text = fidelity_file(path);
    CHECK(strcmp(text, wanted) == 0, "%s is \"%s\", not \"%s\"", path, text, wanted);
}

/* Say that the caller is where it should be, and wait until it is released. Is it in the same groups then? */
static bool stay(void)
{
    char byte, *before = strdup(fidelity_file("/proc/thread-self/cgroup"));
    MUST((int)write(ready[1], "r", 1));
    CHECK(read(release[0], &byte, 1) == 1, "not released");
    return strcmp(before, fidelity_file("/proc/thread-self/cgroup")) == 0;
}

static void await_ready(void)
{
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1, "a member is not ready");
}

static pid_t start_member(const char *file, const char *other_file)
{
    pid_t child = fidelity_fork();
    if (child == 0) {
        put_text(file, "0");
        if (other_file)
            put_text(other_file, "0");
        _exit(stay() ? 0 : 1);
    }
    await_ready();
    return child;
}

static void *run_thread(void *unused)
{
    if (have_pids)
        put_text(OUTER "tasks", "0");
    thread_stayed = stay();
    return unused;
}

static void make_v1(void)
{
    if (have_pids) {
        MUST(mkdir(OUTER, 0755));
        MUST(mkdir(INNER, 0700));
        put_text(OUTER "pids.max", "50");
        put_text(INNER "pids.max", "20");
    }
    if (have_cpuset) {
        MUST(mkdir(CPUS, 0755));
        put_text(CPUS "cpuset.cpus", "0");
        put_text(CPUS "cpuset.mems", "0");
    }
}

static void check_v1(int open_file)
{
    char text[16] = "";
    if (have_pids) {
        expect_text(OUTER "pids.max", "50\n");
        expect_text(INNER "pids.max", "20\n");
        expect_text(INNER "pids.current", "1\n");
        expect_text(OUTER "pids.current", "2\n");
        CHECK(pread(open_file, text, sizeof text, 0) == 3 && strcmp(text, "50\n") == 0, "the open file of a group says \"%s\"", text);
        put_text(INNER "pids.max", fidelity_in_branch() ? "7" : "8");
        expect_text(INNER "pids.max", fidelity_in_branch() ? "7\n" : "8\n");
    }
    if (have_cpuset) {
        expect_text(CPUS "cpuset.cpus", "0\n");
        expect_text(CPUS "cpuset.mems", "0\n");
    }
}

static void check_v2(void)
{
    struct stat st;
    expect_text(MOUNT "v2/tree/cgroup.max.depth", "7\n");
    expect_text(LEAF "cgroup.max.descendants", "3\n");
    CHECK(stat(LEAF, &st) == 0 && (st.st_mode & 0777) == 0711, "the mode of the leaf is %o", st.st_mode & 0777);
    CHECK(rmdir(MOUNT "v2/empty group)") == 0, "the empty group: %s", strerror(errno));
    MUST(mkdir(LEAF "new", 0755));
    CHECK(rmdir(LEAF) < 0 && errno == EBUSY, "the leaf is empty: %s", strerror(errno));
    MUST(rmdir(LEAF "new"));
}

int main(void)
{
    enter_namespaces(CLONE_NEWCGROUP);
    have_pids = mount_groups("pids", "cgroup", "pids");
    have_cpuset = mount_groups("cpuset", "cgroup", "cpuset");
    CHECK(mount_groups("v2", "cgroup2", NULL), "no cgroup2: %s", strerror(errno));
    make_v1();
    MUST(mkdir(MOUNT "v2/tree", 0755));
    MUST(mkdir(LEAF, 0711));
    MUST(mkdir(MOUNT "v2/empty group)", 0755));
    put_text(MOUNT "v2/tree/cgroup.max.depth", "7");
    put_text(LEAF "cgroup.max.descendants", "3");
    MUST(pipe(ready));
    MUST(pipe(release));
    pid_t members[] = {
        start_member(LEAF "cgroup.procs", have_pids ? INNER "cgroup.procs" : NULL),
        start_member(LEAF "cgroup.procs", have_cpuset ? CPUS "cgroup.procs" : NULL),
    };
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_thread, NULL) == 0, "no thread");
    await_ready();
    int open_file = have_pids ? MUST(open(OUTER "pids.max", O_RDONLY)) : -1;
    char *own = strdup(fidelity_file("/proc/self/cgroup")), *leaf = strdup(fidelity_file(LEAF "cgroup.procs"));
    CHECK(strchr(leaf, '\n') != strrchr(leaf, '\n'), "not two members: %s", leaf);

    fidelity_ready();
    fidelity_await_go();

    expect_text("/proc/self/cgroup", own);
    expect_text(LEAF "cgroup.procs", leaf);
    check_v1(open_file);
    check_v2();
    MUST((int)write(release[1], "ggg", 3));
    pthread_join(thread, NULL);
    CHECK(thread_stayed, "the thread is in another group than before");
    for (int i = 0; i < 2; i++)
        fidelity_expect_exit(members[i], 0);
    fidelity_pass();
}
