#include "shield.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILL_TAKES_US 20000     /* until it has ended, and whoever dies with it as well */
#define LONGEST_SECONDS 20      /* a child that hangs behind its shield ends, too */

static pid_t first;             /* the process that waits; 0 = there is no child */

/* Whoever looks at this process, or stops it, means the one that works. */
static void __attribute__((noreturn)) follow(pid_t worker)
{
    int status;
    close_range(STDERR_FILENO + 1, ~0u, 0);     /* the other ends of sockets shall meet their end when the child ends */
    for (;;) {
        if (waitpid(worker, &status, WUNTRACED) < 0)
            _exit(1);
        if (WIFEXITED(status))
            _exit(WEXITSTATUS(status));
        if (WIFSTOPPED(status)) {
            raise(SIGSTOP);
            kill(worker, SIGCONT);
            continue;
        }
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
}

void shield_start(void)
{
    first = getpid();
    pid_t worker = fork();
    if (worker > 0)
        follow(worker);
    if (worker < 0)
        first = 0;              /* then there is less safety, but the fork may still succeed */
    shield_lower();
}

void shield_raise(void)
{
    if (!first)
        return;
    alarm(LONGEST_SECONDS);
    prctl(PR_SET_PDEATHSIG, 0);
}

void shield_lower(void)
{
    if (!first)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t parent = getppid();
    if (parent > 0 && parent != first)      /* it has ended before that, or behind the shield */
        raise(SIGKILL);
    alarm(0);
}

void shield_kill_if_asked(const char *name)
{
    const char *wanted = getenv("TCLONE_LIVEFORK_KILL_AT");
    if (!first || !wanted || strcmp(wanted, name) != 0)
        return;
    kill(first, SIGKILL);
    usleep(KILL_TAKES_US);
}
