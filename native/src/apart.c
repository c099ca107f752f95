#include "apart.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#define STACK_SIZE (128u << 10)

int apart_run(int (*work)(void *), void *argument, struct error *err)
{
    static char stack[STACK_SIZE] __attribute__((aligned(16)));
    int child = clone(work, stack + sizeof stack, CLONE_VM | CLONE_FILES | CLONE_VFORK | SIGCHLD, argument);
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return fail_errno(err, "cannot start a process to look into the source");
    return status == 0 ? 0 : fail(err, "internal", "a process that looked into the source ended with status %#x", status);
}
