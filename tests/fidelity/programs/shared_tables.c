/* Processes made by clone(2) that share a descriptor table, or root and working directory, go on sharing them; what a parent gets at their end stays. */
#include "fidelity.h"

#include <sched.h>

#define OWN_SIGNAL (SIGRTMIN + 5)

struct board {
    volatile int step, fd;
    volatile int checked;
};

static struct board *board;

static long clone_child(unsigned long flags)
{
    fflush(NULL);
    return MUST(syscall(SYS_clone, flags, NULL, NULL, NULL, NULL));
}

static void await_step(int step)
{
    while (board->step < step)
        fidelity_sleep_ms(10);
}

static char *cwd_of(pid_t pid)
{
    static char target[256];
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cwd", pid);
    ssize_t length = MUST(readlink(path, target, sizeof target - 1));
    target[length] = 0;
    return target;
}

static bool shares(int type, pid_t other)
{
    return syscall(SYS_kcmp, getpid(), other, type, 0, 0) == 0;
}

int main(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(mkdir("/tmp/fidelity-shared-tables", 0755));
    MUST(mkdir("/tmp/fidelity-shared-tables/below", 0755));
    int before = MUST(open("/dev/null", O_RDONLY | O_CLOEXEC));
    sigset_t ended;
    sigemptyset(&ended);
    sigaddset(&ended, OWN_SIGNAL);
    sigprocmask(SIG_BLOCK, &ended, NULL);

    pid_t files = (pid_t)clone_child(CLONE_FILES | (unsigned long)OWN_SIGNAL);
    if (files == 0) {
        await_step(1);
        board->fd = MUST(open("/tmp", O_RDONLY | O_DIRECTORY));
        board->step = 2;
        await_step(3);
        _exit(fcntl(before, F_GETFD) == -1 && errno == EBADF ? 12 : 1);
    }
    pid_t below = (pid_t)clone_child(CLONE_FILES | CLONE_FS | SIGCHLD);
    if (below == 0) {
        /* One that does not share: closing must not be seen by the others. */
        pid_t own = fidelity_fork();
        if (own == 0) {
            await_step(3);
            _exit(fcntl(before, F_GETFD) == FD_CLOEXEC ? 0 : 1);
        }
        await_step(4);
        MUST(chdir("/tmp/fidelity-shared-tables/below"));
        umask(0123);
        fidelity_expect_exit(own, 0);
        board->step = 5;
        await_step(6);
        _exit(0);
    }
    MUST(chdir("/tmp/fidelity-shared-tables"));
    fidelity_ready();
    fidelity_await_go();

    CHECK(shares(2 /* KCMP_FILES */, files) && shares(2, below), "the descriptor table is not shared any more");
    CHECK(shares(3 /* KCMP_FS */, below) && !shares(3, files), "root and working directory are shared with others than before");
    board->step = 1;
    await_step(2);
    CHECK(fcntl(board->fd, F_GETFD) == 0, "a descriptor of the child is not mine: %d", board->fd);
    CHECK(strcmp(cwd_of(below), "/tmp/fidelity-shared-tables") == 0, "the child is in %s", cwd_of(below));
    for (int fd = 3; fd < 4096; fd++)
        CHECK(fcntl(fd, F_GETFD) == -1 || fd == before || fd == board->fd, "descriptor %d is open", fd);
    MUST(close(before));
    board->step = 3;
    siginfo_t info;
    struct timespec wait = { 20, 0 };
    CHECK(sigtimedwait(&ended, &info, &wait) == OWN_SIGNAL, "the end of a child did not send signal %d", OWN_SIGNAL);
    int status;
    CHECK(waitpid(files, &status, __WALL) == files && WIFEXITED(status) && WEXITSTATUS(status) == 12, "its status is %#x", status);
    board->step = 4;
    await_step(5);
    CHECK(strcmp(cwd_of(getpid()), "/tmp/fidelity-shared-tables/below") == 0, "I am in %s", cwd_of(getpid()));
    CHECK(umask(0) == 0123, "the umask is not shared");
    board->step = 6;
    fidelity_expect_exit(below, 0);
    fidelity_pass();
}
