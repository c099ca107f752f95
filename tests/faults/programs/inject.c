/*
 * Make one system call of a program fail, or kill the program at it, or count its calls.
 *
 *     inject REPORT WHAT N run COMMAND ARGUMENT...   trace a command from its start
 *     inject REPORT WHAT N attach PID                trace a running process and what it forks; says "attached" on standard output first
 *
 * WHAT is an errno (12) or `first` (the command is killed); with "@NUMBER" behind it only that system call counts. Calls are counted over all traced
 * threads in the order in which they are entered; N = 0 counts only. `worker` only counts, those of the child that works for the command (shield.h): it is
 * killed by livefork's own means, since whoever is traced by this program is not seen to by livefork.
 * Once the call has been hit everything is let go, so that the rest runs as it does without a tracer. REPORT receives one line,
 * "hit NUMBER" (of the system call) or "counted TOTAL". `run` ends as the command ends.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define OPTIONS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC)
#define SYSCALL_STOP (SIGTRAP | 0x80)
#define MAX_TRACEES 4096
#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

struct tracee {
    pid_t tid;
    bool inside;            /* between the entry and the exit of a call */
    bool stopped;           /* known to be in a ptrace stop */
    bool failing;           /* its call was the one */
};

static struct tracee tracees[MAX_TRACEES];
static int tracee_count;
static long counted, wanted;
static int wanted_errno;    /* 0 = kill, or nothing */
static bool counts_worker;      /* and nothing else */
static pid_t command;           /* what is run */
static int command_status = -1; /* how it ended, when that was told while all were let go */
static pid_t worker;        /* the first child of the command; 0 = it has none yet */
static long wanted_number = -1;     /* -1 = any system call */
static const char *report_path;
static volatile sig_atomic_t asked_to_stop;

static void __attribute__((noreturn)) die(const char *what)
{
    fprintf(stderr, "inject: %s: %s\n", what, strerror(errno));
    exit(125);
}

static void report(const char *word, long number)
{
    FILE *file = fopen(report_path, "w");
    if (!file)
        die(report_path);
    fprintf(file, "%s %ld\n", word, number);
    fclose(file);
}

static struct tracee *tracee_of(pid_t tid)
{
    for (int i = 0; i < tracee_count; i++)
        if (tracees[i].tid == tid)
            return &tracees[i];
    if (tracee_count == MAX_TRACEES)
        die("too many threads");
    tracees[tracee_count] = (struct tracee){ .tid = tid };
    return &tracees[tracee_count++];
}

static void forget(struct tracee *tracee)
{
    *tracee = tracees[--tracee_count];
}

static void set_result(pid_t tid, long number, long result)
{
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, tid, 0, &regs) < 0)
        return;
    regs.orig_rax = (unsigned long)number;
    regs.rax = (unsigned long)result;
    ptrace(PTRACE_SETREGS, tid, 0, &regs);
}

/* What a traced thread starts is traced as well, and stands still until it is let go. */
static void note_child(pid_t tid, int event)
{
    unsigned long child;
    if ((event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE)
        && ptrace(PTRACE_GETEVENTMSG, tid, 0, &child) == 0) {
        tracee_of((pid_t)child);
        worker = worker ? worker : (pid_t)child;
    }
}

/* Let go of one of which `waitpid` has told this. */
static void let_go_of(pid_t tid, int status)
{
    if (!WIFSTOPPED(status)) {
        if (tid == command)
            command_status = status;
        forget(tracee_of(tid));
        return;
    }
    note_child(tid, status >> 16);
    ptrace(PTRACE_DETACH, tid, 0, WSTOPSIG(status) != SYSCALL_STOP && !(status >> 16) ? WSTOPSIG(status) : 0);
    forget(tracee_of(tid));
}

/* Returns whether the tracee has been let go or has ended; it may not have stopped yet. */
static bool let_go(struct tracee *tracee)
{
    int status;
    pid_t tid = tracee->tid;
    if (tracee->stopped) {
        ptrace(PTRACE_DETACH, tid, 0, 0);
        forget(tracee);
        return true;
    }
    pid_t got = waitpid(tid, &status, __WALL | WNOHANG);
    if (got == 0)
        return false;
    if (got < 0)
        forget(tracee);
    else
        let_go_of(tid, status);
    return true;
}

/* A thread whose maker was killed before it could tell of it is nobody's here, and keeps its process from ending until it is waited for. */
static bool let_go_of_anything(void)
{
    int status;
    pid_t tid = waitpid(-1, &status, __WALL | WNOHANG);
    if (tid <= 0)
        return false;
    let_go_of(tid, status);
    return true;
}

/*
 * Leave every thread alone. One that runs is interrupted first: only a stopped tracee can be detached. One that waits for its vfork's child does not stop
 * before that one has been let go, so nobody is waited for alone.
 */
static void let_all_go(void)
{
    for (int i = 0; i < tracee_count; i++)
        if (!tracees[i].stopped)
            ptrace(PTRACE_INTERRUPT, tracees[i].tid, 0, 0);
    while (tracee_count) {
        bool any = false;
        for (int i = tracee_count - 1; i >= 0; i--)
            any |= i < tracee_count && let_go(&tracees[i]);
        if (!any && !let_go_of_anything())
            usleep(100);
    }
}

/* Ends, which cannot fail; and what is called again and again while waiting, as often as it happens to take. */
static bool is_beside_the_point(long number)
{
    return number == SYS_exit || number == SYS_exit_group || number == SYS_rt_sigreturn || number == SYS_sched_yield || number == SYS_wait4
        || number == SYS_nanosleep || number == SYS_clock_nanosleep;
}

/* Is it a call that tells no error? brk does not move the end when it cannot, and tells where it is. */
static bool cannot_fail(pid_t tid, struct user_regs_struct *regs)
{
    switch ((long)regs->orig_rax) {
    case SYS_brk:
        regs->rdi = 0;
        ptrace(PTRACE_SETREGS, tid, 0, regs);
        return true;
    case SYS_getpid:
    case SYS_getppid:
    case SYS_gettid:
    case SYS_getuid:
    case SYS_geteuid:
    case SYS_getgid:
    case SYS_getegid:
    case SYS_umask:
    case SYS_alarm:
    case SYS_set_tid_address:
        return true;
    default:
        return false;
    }
}

/* A thread of the victim's reports its end instead of standing still. */
static void kill_process(struct tracee *tracee, pid_t victim)
{
    kill(victim, SIGKILL);
    if (syscall(SYS_tgkill, victim, tracee->tid, 0) == 0)
        tracee->stopped = false;
}

/* Returns true when the call was the wanted one and everything has been let go. */
static bool at_syscall(struct tracee *tracee)
{
    if (tracee->failing) {
        set_result(tracee->tid, -1, -wanted_errno);
        let_all_go();
        return true;
    }
    tracee->inside = !tracee->inside;
    if (!tracee->inside)
        return false;
    struct user_regs_struct regs;
    if (ptrace(PTRACE_GETREGS, tracee->tid, 0, &regs) < 0)
        return false;
    long number = (long)regs.orig_rax;
    if (counts_worker && tracee->tid != worker)
        return false;
    if (wanted_number < 0 ? is_beside_the_point(number) : number != wanted_number)
        return false;
    if (++counted != wanted)
        return false;
    report("hit", number);
    if (wanted_errno && cannot_fail(tracee->tid, &regs)) {
        let_all_go();
        return true;
    }
    if (wanted_errno) {
        tracee->failing = true;
        if (number != SYS_close)                        /* one that fails has closed all the same */
            set_result(tracee->tid, -1, -ENOSYS);       /* no call is made; the result is put in at its exit */
        return false;
    }
    kill_process(tracee, command);
    forget(tracee_of(command));                 /* its end is waited for by the caller */
    let_all_go();
    return true;
}

static void ask_to_stop(int signal)
{
    (void)signal;
    asked_to_stop = 1;
}

/* Follow everything until the call was hit or nothing is left. Returns the command's wait status once it has ended, else -1. */
static int follow(void)
{
    for (;;) {
        int status;
        pid_t tid = waitpid(-1, &status, __WALL);
        if (tid < 0) {
            if (errno == EINTR && !asked_to_stop)
                continue;
            let_all_go();
            return -1;
        }
        struct tracee *tracee = tracee_of(tid);
        if (!WIFSTOPPED(status)) {
            forget(tracee);
            if (tid == command)
                return status;
            continue;
        }
        tracee->stopped = true;
        int signal = WSTOPSIG(status), event = status >> 16;
        note_child(tid, event);
        if (signal == SYSCALL_STOP) {
            if (at_syscall(tracee))
                return -1;
            signal = 0;
        } else if (event) {
            if (event == PTRACE_EVENT_STOP && (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU)) {
                tracee->stopped = false;
                ptrace(PTRACE_LISTEN, tid, 0, 0);       /* job control: stay stopped */
                continue;
            }
            signal = 0;
        }
        tracee->stopped = false;
        ptrace(PTRACE_SYSCALL, tid, 0, signal);
    }
}

static int run(char **argv)
{
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        raise(SIGSTOP);
        execv(argv[0], argv);
        _exit(127);
    }
    int status;
    if (waitpid(child, &status, WUNTRACED) != child || ptrace(PTRACE_SEIZE, child, 0, OPTIONS | PTRACE_O_EXITKILL) < 0)
        die("cannot trace the command");
    kill(child, SIGCONT);
    tracee_of(child);
    command = child;
    status = follow();
    /* Threads that are still traced must be waited for as well: the end of the command is not told before. */
    if (command_status != -1)
        status = command_status;
    for (pid_t got = 0; status == -1 && got != child;)
        if ((got = waitpid(-1, &status, __WALL)) < 0)
            die("wait");
        else if (got != child)
            status = -1;
    if (!wanted || counted < wanted)
        report("counted", counted);
    if (WIFSIGNALED(status)) {
        signal(WTERMSIG(status), SIG_DFL);
        kill(getpid(), WTERMSIG(status));
    }
    return WEXITSTATUS(status);
}

static int attach(pid_t pid)
{
    struct sigaction action = { .sa_handler = ask_to_stop };
    sigaction(SIGTERM, &action, NULL);
    if (ptrace(PTRACE_SEIZE, pid, 0, OPTIONS) < 0 || ptrace(PTRACE_INTERRUPT, pid, 0, 0) < 0)
        die("cannot attach");
    tracee_of(pid)->inside = false;
    printf("attached\n");
    fflush(stdout);
    command = pid;
    follow();
    if (!wanted || counted < wanted)
        report("counted", counted);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: inject REPORT ERRNO|first|worker N run COMMAND... | attach PID\n");
        return 125;
    }
    report_path = argv[1];
    const char *only = strchr(argv[2], '@');
    counts_worker = strcmp(argv[2], "worker") == 0;
    wanted_errno = strncmp(argv[2], "first", 5) == 0 || counts_worker ? 0 : atoi(argv[2]);
    wanted_number = only ? atol(only + 1) : -1;
    wanted = atol(argv[3]);
    return strcmp(argv[4], "run") == 0 ? run(argv + 5) : attach(atoi(argv[5]));
}
