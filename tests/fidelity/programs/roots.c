/*
 * Root directories: an ordinary chroot, one whose directory was removed, and a browser's, which is a directory in /proc of a helper that has ended,
 * by way of the working directory and root that both share. Also pid namespaces without a mount namespace: one whose first process adopts and
 * buries, one that nobody was born in yet, and one in which nobody can be any more.
 */
#include "fidelity.h"

#include <dirent.h>

#define PLACE "/tmp/fidelity-roots"
#define MEMBERS 6

static struct shared {
    int ready;
    bool go;
} *shared;

static void await_go(void)
{
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
    while (!*(volatile bool *)&shared->go)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
}

/* Failing by exit status: the result file is out of reach. */
static void expect(bool condition, int status)
{
    if (!condition)
        _exit(status);
}

static int entries(const char *path)
{
    DIR *directory = opendir(path);
    if (!directory)
        return -1;
    int count = 0;
    while (readdir(directory))
        count++;
    closedir(directory);
    return count;
}

static void __attribute__((noreturn)) ordinary(void)
{
    MUST(mkdir(PLACE "/jail/etc", 0755));
    MUST(chroot(PLACE "/jail"));
    MUST(chdir("/etc"));
    await_go();
    char name[64] = "";
    expect(getcwd(name, sizeof name) && strcmp(name, "/etc") == 0, 11);
    expect(access("/etc", F_OK) == 0 && access("/proc", F_OK) < 0 && access("../../tmp", F_OK) < 0, 12);
    _exit(0);
}

static void __attribute__((noreturn)) removed(void)
{
    MUST(mkdir(PLACE "/gone", 0755));
    MUST(chroot(PLACE "/gone"));
    MUST(chdir("/"));
    expect(rmdir("/../gone") < 0, 10);
    await_go();
    expect(access("/proc", F_OK) < 0 && access("..", F_OK) == 0, 13);
    expect(mkdir("/new", 0700) < 0 && errno == ENOENT, 14);
    _exit(0);
}


static int sandbox_helper(void *unused)
{
    (void)unused;
    _exit(chroot("/proc/self/fdinfo/") < 0 || chdir("/") < 0);
}

static void __attribute__((noreturn)) sandboxed(void)
{
    static char stack[65536] __attribute__((aligned(16)));
    pid_t helper = MUST(clone(sandbox_helper, stack + sizeof stack, CLONE_FS | SIGCHLD, NULL));
    fidelity_expect_exit(helper, 0);
    await_go();
    expect(entries("/") <= 0, 15);
    expect(open("/0", O_RDONLY) < 0 && access("/proc", F_OK) < 0, 16);
    expect(mkdir("/new", 0700) < 0, 17);
    _exit(0);
}

/* Pid 1 and its orphans, /proc being the workspace's. */
static void __attribute__((noreturn)) first_process(void)
{
    if (fidelity_fork() == 0) {
        if (fidelity_fork() == 0) {
            while (getppid() != 1)
                fidelity_sleep_ms(5);
            await_go();
            _exit(21);
        }
        _exit(22);
    }
    int status;
    expect(wait(&status) > 0 && WEXITSTATUS(status) == 22, 18);
    while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) == 0)
        fidelity_sleep_ms(5);
    while (!*(volatile bool *)&shared->go)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    expect(getpid() == 1 && wait(&status) == 3 && WEXITSTATUS(status) == 21, 19);
    expect(wait(&status) < 0, 20);
    _exit(0);
}

static void __attribute__((noreturn)) pid_namespace(void)
{
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWPID));
    pid_t first = fidelity_fork();
    if (first == 0)
        first_process();
    while (!*(volatile bool *)&shared->go)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    int status;
    expect(waitpid(first, &status, 0) == first, 23);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 24);
}

/* unshare without a fork so far: the first child begins a pid namespace. */
static void __attribute__((noreturn)) unborn(void)
{
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWPID));
    await_go();
    pid_t first = fork();
    if (first == 0)
        _exit(getpid() == 1 ? 26 : 27);
    int status;
    expect(first > 0 && waitpid(first, &status, 0) == first && WEXITSTATUS(status) == 26, 25);
    _exit(0);
}

/* The first process has come and gone: there will be no other. */
static void __attribute__((noreturn)) extinct(void)
{
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWPID));
    pid_t first = fidelity_fork();
    if (first == 0)
        _exit(0);
    fidelity_expect_exit(first, 0);
    await_go();
    expect(fork() < 0 && errno == ENOMEM, 28);
    _exit(0);
}

int main(void)
{
    static void (*const members[MEMBERS])(void) = { ordinary, removed, sandboxed, pid_namespace, unborn, extinct };
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(mkdir(PLACE, 0755));
    MUST(mkdir(PLACE "/jail", 0755));
    pid_t children[MEMBERS];
    for (int i = 0; i < MEMBERS; i++)
        if ((children[i] = fidelity_fork()) == 0)
            members[i]();
    while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < MEMBERS)
        fidelity_sleep_ms(10);
    MUST(rmdir(PLACE "/gone"));
    fidelity_ready();
    fidelity_await_go();
    shared->go = true;
    for (int i = 0; i < MEMBERS; i++)
        fidelity_expect_exit(children[i], 0);
    fidelity_pass();
}
