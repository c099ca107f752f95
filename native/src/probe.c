#include "probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROGRAM "/usr/libexec/tclone/init"
#define NAMESPACES (CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP)

#define STACK (64 << 10)

/* What the exit status says of the step that failed. */
enum { FAILED_ENTER = 120, FAILED_FORK = 121, FAILED_EXEC = 122 };

/*
 * This program's memory map is large and fork would copy its page tables, so children borrow it until they exec or end, each on a stack of its
 * own. vfork would not do: one within another spoils what the outer one has to return to (the sanitizers keep it in one place a thread).
 * The sanitizers do not know these stacks.
 */
static char stacks[2][STACK] __attribute__((aligned(16)));

static pid_t start_borrowing(char *stack, int (*run)(void *), void *argument)
{
    return clone(run, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, argument);
}

static int __attribute__((noreturn, no_sanitize("address"))) run_program(void *unused)
{
    (void)unused;
    static char *const argv[] = { PROGRAM, "--version", NULL };
    static char *const environment[] = { NULL };
    int null = open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3; fd++)
        dup2(null, fd);
    syscall(SYS_close_range, 3, ~0u, 0);    /* nothing of the host goes in */
    execve(PROGRAM, argv, environment);
    _exit(FAILED_EXEC);
}

/* A pid namespace is entered by children only, so this process waits for the one that runs the program. */
static int __attribute__((noreturn, no_sanitize("address"))) enter(void *pidfd)
{
    if (setns(*(int *)pidfd, NAMESPACES) < 0 || chdir("/") < 0)
        _exit(FAILED_ENTER);
    pid_t child = start_borrowing(stacks[1], run_program, NULL);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        _exit(FAILED_FORK);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

int probe_branch(struct branch *branch, struct error *err)
{
    pid_t child = start_borrowing(stacks[0], enter, &branch->init_pidfd);
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return fail_errno(err, "%s: cannot start a first command", branch->id);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    return fail(err, "internal", "%s: the first command in it failed with status %d", branch->id,
                WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}
