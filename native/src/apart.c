#include "apart.h"
#include "shield.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#define STACK_SIZE (128u << 10)

int apart_run(int (*work)(void *), void *argument, struct error *err)
{
    static char stack[STACK_SIZE] __attribute__((aligned(16)));
    /* The source stands still as long as its tracer lives: nobody meets a queue that is empty for the moment, or writes to it. */
    shield_raise();
    int child = clone(work, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_VFORK | SIGCHLD, argument);
    int status, ended = child < 0 ? -1 : waitpid(child, &status, 0);
    int number = errno;
    shield_lower();
    errno = number;
    if (ended < 0)
        return fail_errno(err, "cannot start a process to look into the source");
    return status == 0 ? 0 : fail(err, "internal", "a process that looked into the source ended with status %#x", status);
}
