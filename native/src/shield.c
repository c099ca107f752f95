#include "shield.h"
#include "rescue.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILL_TAKES_US 20000     /* until it has ended, and whoever dies with it as well */
/* A child that hangs behind its shield ends, too. With sanitizers it allocates so slowly that a busy machine takes more than 20 s of it. */
#ifdef __SANITIZE_ADDRESS__
#define LONGEST_SECONDS 120
#else
#define LONGEST_SECONDS 20
#endif
#define SYSCALL_STOP (SIGTRAP | 0x80)
#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

static pid_t first;             /* the process that waits; 0 = there is no child */
static pid_t worker;

/* ---- for tests: the child killed at its n-th system call ---- */

static long calls_left;         /* 0 = it is not killed */
static bool inside_call;

static void count_from_environment(void)
{
    static const char prefix[] = "call:";
    const char *wanted = getenv("TCLONE_LIVEFORK_KILL_AT");
    if (wanted && strncmp(wanted, prefix, strlen(prefix)) == 0)
        calls_left = atol(wanted + strlen(prefix));
}

/* Waiting takes as many calls as it happens to take; an end cannot be killed. The same as in tests/faults/programs/inject.c. */
static bool is_beside_the_point(long number)
{
    return number == SYS_exit || number == SYS_exit_group || number == SYS_rt_sigreturn || number == SYS_sched_yield || number == SYS_wait4
        || number == SYS_nanosleep || number == SYS_clock_nanosleep;
}

/* Is the call at which the worker has stopped the one at which it is killed? */
static bool is_last_call(void)
{
    struct user_regs_struct regs;
    inside_call = !inside_call;
    if (!inside_call || ptrace(PTRACE_GETREGS, worker, 0, &regs) < 0 || is_beside_the_point((long)regs.orig_rax) || --calls_left)
        return false;
    fprintf(stderr, "tclone-livefork: killed at system call %ld\n", (long)regs.orig_rax);
    return true;
}

/* ---- the process that waits ---- */

static void __attribute__((noreturn)) end_as(int status)
{
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
    }
    _exit(WEXITSTATUS(status));
}

static bool is_killed(void)
{
    unsigned long status;
    return ptrace(PTRACE_GETEVENTMSG, worker, 0, &status) == 0 && WIFSIGNALED((int)status);
}

/* Whoever stops this process means the one that works. */
static void stop_alike(void)
{
    raise(SIGSTOP);
    kill(worker, SIGCONT);
}

/* The worker has stopped for us, who trace it so that it does not end before we know. */
static void answer_stop(int status, pid_t source)
{
    int number = WSTOPSIG(status), event = status >> 16, passed_on = 0;
    if (event == PTRACE_EVENT_EXIT && is_killed()) {
        first = 0;              /* what we do ourselves needs no shield */
        end_as(rescue(worker, source));
    }
    if (event == PTRACE_EVENT_STOP && number != SIGTRAP) {        /* not the end of a stop: the stop itself */
        ptrace(PTRACE_LISTEN, worker, 0, 0);
        stop_alike();
        return;
    }
    if (number == SYSCALL_STOP && is_last_call()) {
        kill(worker, SIGKILL);  /* which starts it: to go on now could mean its next stop, the one at its end */
        return;
    }
    if (!event && number != SYSCALL_STOP)
        passed_on = number;
    ptrace(calls_left ? PTRACE_SYSCALL : PTRACE_CONT, worker, 0, passed_on);
}

static void __attribute__((noreturn)) follow(bool traced, pid_t source)
{
    int status;
    close_range(STDERR_FILENO + 1, ~0u, 0);     /* the other ends of sockets shall meet their end when the child ends */
    for (;;) {
        if (waitpid(worker, &status, WUNTRACED | __WALL) < 0)
            _exit(1);
        if (!WIFSTOPPED(status))
            end_as(status);
        if (traced)
            answer_stop(status, source);
        else
            stop_alike();
    }
}

/* ---- the one that works ---- */

/* A signal that somebody waits for stops whoever is traced; of these there is one for each stop of each thread of the source, and nobody heeds them. */
static void be_quiet(void)
{
    struct sigaction action = { .sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP };
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigaction(SIGCHLD, &action, NULL);
    sigprocmask(SIG_BLOCK, &child, NULL);
}

void shield_start(pid_t source)
{
    int gate[2];
    char byte;
    bool gated = pipe2(gate, O_CLOEXEC) == 0;
    first = getpid();
    worker = fork();
    if (worker > 0) {
        count_from_environment();
        /* One that somebody else traces already, as tests do, is not seen to when it is killed. */
        bool traced = ptrace(PTRACE_SEIZE, worker, 0, PTRACE_O_TRACEEXIT | PTRACE_O_TRACESYSGOOD) == 0;
        if (traced && calls_left && ptrace(PTRACE_INTERRUPT, worker, 0, 0) < 0)
            calls_left = 0;
        if (gated && write(gate[1], "", 1) < 0)
            close(gate[1]);     /* its end opens the gate, too */
        follow(traced, source);
    }
    if (worker < 0)
        first = 0;              /* then there is less safety, but the fork may still succeed */
    worker = getpid();
    if (gated) {
        close(gate[1]);
        while (first && read(gate[0], &byte, 1) < 0 && errno == EINTR)
            ;                   /* until the other is ready, or has ended */
        close(gate[0]);
    }
    be_quiet();
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
    static const char prefix[] = "worker:";
    const char *wanted = getenv("TCLONE_LIVEFORK_KILL_AT");
    if (!first || !wanted)
        return;
    bool itself = strncmp(wanted, prefix, strlen(prefix)) == 0;
    if (strcmp(wanted + (itself ? strlen(prefix) : 0), name) != 0)
        return;
    kill(itself ? worker : first, SIGKILL);
    usleep(KILL_TAKES_US);
}
