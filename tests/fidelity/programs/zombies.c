/* Children that ended but were not waited for keep their pid and their status; SIGCHLD stays pending once. */
#include "fidelity.h"

int main(void)
{
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_signal, NULL);
    pid_t exited = fidelity_fork();
    if (exited == 0)
        _exit(42);
    pid_t killed = fidelity_fork();
    if (killed == 0) {
        signal(SIGTERM, SIG_DFL);
        raise(SIGTERM);
        _exit(0);
    }
    siginfo_t info;
    MUST(waitid(P_PID, (id_t)exited, &info, WEXITED | WNOWAIT));
    MUST(waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT));
    fidelity_ready();
    fidelity_await_go();
    sigset_t pending;
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGCHLD) == 1, "SIGCHLD is not pending");
    CHECK(kill(exited, 0) == 0, "the zombie %d is gone", exited);
    int status;
    CHECK(waitpid(killed, &status, 0) == killed && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "killed child: status 0x%x", status);
    fidelity_expect_exit(exited, 42);
    CHECK(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD, "there are more children than there were");
    fidelity_pass();
}
