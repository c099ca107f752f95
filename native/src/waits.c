/*
 * `sleep 1000` gives the kernel a time and no place for the remainder, and the remainder is in a restart block that nobody can read. But before the
 * freeze /proc/PID/task/TID/syscall shows the call and its arguments, and `sched` when the thread last ran and how often it was switched: it began to
 * wait when it last ran. If it has been switched exactly once more when it is frozen, that was the freeze itself, and it is still the same wait.
 *
 * `sched` counts in another clock, one a processor, which our own entry tells when we run there; it is as old as our last tick, and slower than real
 * time. That, and a margin, make waits end late rather than early (0.7 s early was measured with the clock of another processor). Kernels without the file leave such waits to last their whole time.
 */
#include "waits.h"
#include "doubt.h"
#include "freeze.h"
#include "proc.h"
#include "tasks.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SHORT_NS 3000000000ull  /* shorter waits are not worth two readings of `sched`, 30 us each */
#define MARGIN_NS 10000000ull
#define SCHED_LIMIT (64u << 10)
#define STAT_LIMIT 4096
#define STAT_PROCESSOR 39
#define NANOSECONDS 1000000000ull
#define WHOLE_FUTEX_OPERATION 0x7f

struct wait {
    pid_t tid;
    long number;
    uint64_t args[4];
    uint64_t switches, began;
};

static struct wait *waits;
static int wait_count;

struct run { uint64_t at, switches; };

/* "se.exec_start   :   12954985.271293" (ms) and "nr_switches   :   17"; `sched` begins with the thread's name, which may look like either. */
static bool read_run(pid_t pid, pid_t tid, struct run *run)
{
    struct error err = { 0 };
    AUTO_FREE char *text = proc_read(&err, SCHED_LIMIT, NULL, "/proc/%d/task/%d/sched", pid, tid);
    doubt_error(&err);
    const char *rule = text ? strstr(text, "\n-------") : NULL, *start = rule ? strstr(rule, "se.exec_start") : NULL;
    const char *switches = start ? strstr(start, "nr_switches") : NULL;
    unsigned long milliseconds, nanoseconds, count;
    if (!switches || sscanf(start, "se.exec_start : %lu.%6lu", &milliseconds, &nanoseconds) != 2 || sscanf(switches, "nr_switches : %lu", &count) != 1)
        return false;
    *run = (struct run){ milliseconds * 1000000 + nanoseconds, count };
    return true;
}

static uint64_t time_at(pid_t pid, uint64_t address)
{
    struct timespec time = { 0 };
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    AUTO_CLOSE int mem = open(path, O_RDONLY | O_CLOEXEC);
    if (!address || mem < 0 || pread(mem, &time, sizeof time, (off_t)address) != sizeof time || time.tv_sec < 0)
        return 0;
    return time.tv_sec > 1000000000 ? ~0ull : (uint64_t)time.tv_sec * NANOSECONDS + (uint64_t)time.tv_nsec;
}

/* How long the call waits at most; 0 = it is none of those that lose their remainder. */
static uint64_t whole_time(pid_t pid, const struct wait *wait)
{
    switch (wait->number) {
    case SYS_nanosleep: return wait->args[1] ? 0 : time_at(pid, wait->args[0]);
    case SYS_clock_nanosleep: return wait->args[3] || wait->args[1] & TIMER_ABSTIME ? 0 : time_at(pid, wait->args[2]);
    case SYS_poll: return (int)wait->args[2] > 0 ? (uint64_t)wait->args[2] * 1000000 : 0;
    case SYS_futex: return (wait->args[1] & WHOLE_FUTEX_OPERATION) == FUTEX_WAIT ? time_at(pid, wait->args[3]) : 0;
    default: return 0;
    }
}

/* The clock of `sched` on the processor where the thread waits: each has its own, which stands still while the processor is stolen from us. */
static uint64_t clock_where(pid_t pid, pid_t tid)
{
    struct error err = { 0 };
    AUTO_FREE char *text = proc_read(&err, STAT_LIMIT, NULL, "/proc/%d/task/%d/stat", pid, tid);
    doubt_error(&err);
    cpu_set_t before, there;
    struct run run;
    if (!text || sched_getaffinity(0, sizeof before, &before) < 0)
        return 0;
    CPU_ZERO(&there);
    CPU_SET((size_t)tasks_stat_field(text, STAT_PROCESSOR), &there);
    if (sched_setaffinity(0, sizeof there, &there) < 0)
        return 0;
    sched_yield();              /* brings our entry up to date where it can */
    uint64_t now = read_run(getpid(), (pid_t)syscall(SYS_gettid), &run) ? run.at : 0;
    if (INSIST(sched_setaffinity(0, sizeof before, &before)) < 0)
        doubt(ANSWERS(0), "cannot go back to the processors from one of them");
    return now;
}

void waits_note(pid_t pid, pid_t tid)
{
    struct error err = { 0 };
    struct wait wait = { .tid = tid };
    AUTO_FREE char *text = proc_read(&err, 4096, NULL, "/proc/%d/task/%d/syscall", pid, tid);
    doubt_error(&err);
    if (!text || sscanf(text, "%ld %lx %lx %lx %lx", &wait.number, &wait.args[0], &wait.args[1], &wait.args[2], &wait.args[3]) != 5)
        return;                 /* it runs */
    struct run run;
    if (whole_time(pid, &wait) < SHORT_NS || !read_run(pid, tid, &run))
        return;
    uint64_t now = clock_where(pid, tid);
    if (now <= run.at)
        return;
    wait.began = monotonic_ns() - (now - run.at) + MARGIN_NS;
    wait.switches = run.switches;
    waits = must_grow(waits, (size_t)(wait_count + 1) * sizeof *waits);
    waits[wait_count++] = wait;
}

uint64_t waits_began(const struct thread *thread)
{
    const struct user_regs_struct *regs = &thread->regs;
    const uint64_t args[4] = { regs->rdi, regs->rsi, regs->rdx, regs->r10 };
    for (int i = 0; i < wait_count; i++) {
        const struct wait *wait = &waits[i];
        struct run run;
        if (wait->tid != thread->tid || memcmp(wait->args, args, sizeof args) != 0)
            continue;
        bool same_call = (long)regs->orig_rax == wait->number;
        return same_call && read_run(thread->process->pid, thread->tid, &run) && run.switches == wait->switches + 1 ? wait->began : 0;
    }
    return 0;
}
