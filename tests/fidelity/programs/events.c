/* eventfd (also shared, also as a semaphore), signalfd, pidfds of a child, a zombie, a dead process, itself; close-on-exec and flags. */
#include "fidelity.h"

#include <sys/eventfd.h>
#include <sys/signalfd.h>

static int pidfd(pid_t pid, unsigned flags)
{
    return MUST((int)syscall(SYS_pidfd_open, pid, flags));
}

static bool readable(int fd)
{
    struct pollfd wait = { fd, POLLIN, 0 };
    return poll(&wait, 1, 0) == 1 && (wait.revents & POLLIN);
}

int main(void)
{
    int plain = MUST(eventfd(5, EFD_NONBLOCK)), semaphore = MUST(eventfd(3, EFD_SEMAPHORE | EFD_NONBLOCK | EFD_CLOEXEC));
    int wide = MUST(eventfd(0, EFD_NONBLOCK)), wake = MUST(eventfd(0, 0));
    uint64_t value = 0x123456789abcull;
    MUST((int)write(wide, &value, sizeof value));
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN + 7);
    sigaddset(&mask, SIGUSR2);
    sigprocmask(SIG_BLOCK, &mask, NULL);
    int signals = MUST(signalfd(-1, &mask, SFD_NONBLOCK));
    MUST(sigqueue(getpid(), SIGRTMIN + 7, (union sigval){ .sival_int = 99 }));
    pid_t child = fidelity_fork();
    if (child == 0) {
        uint64_t got;
        MUST((int)read(wake, &got, sizeof got));        /* blocks across the fork */
        _exit((int)got);
    }
    pid_t dead = fidelity_fork();
    if (dead == 0)
        _exit(0);
    int of_dead = pidfd(dead, 0);
    fidelity_expect_exit(dead, 0);
    pid_t zombie = fidelity_fork();
    if (zombie == 0)
        _exit(3);
    siginfo_t info;
    MUST(waitid(P_PID, (id_t)zombie, &info, WEXITED | WNOWAIT));
    int of_child = pidfd(child, 0), of_zombie = pidfd(zombie, 0), of_self = pidfd(getpid(), O_NONBLOCK);

    fidelity_ready();
    fidelity_await_go();
    CHECK(read(plain, &value, 8) == 8 && value == 5, "eventfd: %lu", value);
    CHECK(read(semaphore, &value, 8) == 8 && value == 1 && read(semaphore, &value, 8) == 8 && value == 1, "semaphore: %lu", value);
    CHECK(fcntl(semaphore, F_GETFD) == FD_CLOEXEC, "close-on-exec is lost");
    CHECK(read(wide, &value, 8) == 8 && value == 0x123456789abcull, "wide eventfd: %lx", value);
    CHECK(read(plain, &value, 8) == -1 && errno == EAGAIN, "eventfd not empty, or blocking");
    struct signalfd_siginfo got;
    CHECK(read(signals, &got, sizeof got) == sizeof got && got.ssi_signo == (unsigned)SIGRTMIN + 7 && got.ssi_int == 99, "signalfd");
    CHECK(read(signals, &got, sizeof got) == -1 && errno == EAGAIN, "signalfd has more");
    raise(SIGUSR2);
    CHECK(read(signals, &got, sizeof got) == sizeof got && got.ssi_signo == SIGUSR2, "signalfd lost a part of its mask");

    CHECK(readable(of_dead), "the pidfd of a dead process does not say so");
    CHECK(syscall(SYS_pidfd_send_signal, of_dead, 0, NULL, 0) == -1 && errno == ESRCH, "the pidfd of a dead process addresses one");
    CHECK(readable(of_zombie), "the pidfd of a zombie does not say that it ended");
    MUST(waitid((idtype_t)3 /* P_PIDFD */, (id_t)of_zombie, &info, WEXITED));
    CHECK(info.si_pid == zombie && info.si_status == 3, "pid %d status %d", info.si_pid, info.si_status);
    CHECK((fcntl(of_self, F_GETFL) & O_NONBLOCK) && syscall(SYS_pidfd_send_signal, of_self, 0, NULL, 0) == 0, "the pidfd of itself");
    CHECK(!readable(of_child) && syscall(SYS_pidfd_send_signal, of_child, 0, NULL, 0) == 0, "the child's pidfd does not work");
    value = fidelity_in_branch() ? 7 : 8;
    MUST((int)write(wake, &value, 8));
    struct pollfd ended = { of_child, POLLIN, 0 };
    CHECK(poll(&ended, 1, 5000) == 1, "the child's pidfd does not tell its end");
    fidelity_expect_exit(child, (int)value);
    fidelity_pass();
}
