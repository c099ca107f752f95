#include "interrupted.h"
#include "doubt.h"
#include "freeze.h"
#include "proc.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_PEEKSIGINFO
#define PTRACE_PEEKSIGINFO 0x4209
#endif
#define SYSCALL_INSTRUCTION_SIZE 2
#define RED_ZONE 128            /* bytes below the stack pointer that a function may use (x86-64 ABI) */
#define QUEUES 2                /* the thread's own, the process's */
#define AT_ONCE 16
#define NANOSECONDS 1000000000ll
#define COUNTABLE_SECONDS 4000000000ll

/* From include/linux/errno.h: what a syscall returns inside the kernel when a signal or a tracer interrupted it. */
enum {
    RESTART_SYS = -512, RESTART_NO_INTERRUPT = -513, RESTART_NO_HANDLER = INTERRUPTED_WITHOUT_HANDLER, RESTART_BLOCK = INTERRUPTED_WITH_RESTART_BLOCK
};

static void enter_again(struct user_regs_struct *regs)
{
    regs->rax = regs->orig_rax;
    regs->rip -= SYSCALL_INSTRUCTION_SIZE;
    regs->orig_rax = (uint64_t)-1;
}

/* Is this one of the calls that the kernel does not restart, waiting without a limit? With one, EINTR lets the program compute what is left. */
static bool waits_for_ever(const struct user_regs_struct *regs)
{
    switch (regs->orig_rax) {
    case SYS_epoll_wait:
    case SYS_epoll_pwait: return (int)regs->r10 < 0;
    case SYS_epoll_pwait2: return regs->r10 == 0;
    case SYS_rt_sigtimedwait: return regs->rdx == 0;
    case SYS_semop: return true;
    case SYS_semtimedop: return regs->r10 == 0;
    case SYS_io_getevents: return regs->r8 == 0;
    default: return false;
    }
}

/* Of a long queue: the sets of pending signals, which only /proc shows. The kernel walks the queue from its start for each signal that it shows. */
static bool one_of_many_is_due(const struct thread *thread)
{
    struct error err = { 0 };
    AUTO_FREE char *status = proc_read(&err, 1 << 20, NULL, "/proc/%d/task/%d/status", thread->process->pid, thread->tid);
    doubt_error(&err);
    const char *own = status ? proc_field(status, "SigPnd") : NULL, *shared = status ? proc_field(status, "ShdPnd") : NULL;
    uint64_t pending = (own ? strtoull(own, NULL, 16) : 0) | (shared ? strtoull(shared, NULL, 16) : 0);
    return pending & ~thread->signal_mask;
}

/* A signal that will run a handler makes EINTR right. */
static bool signal_is_due(const struct thread *thread)
{
    for (uint32_t queue = 0; queue < QUEUES; queue++) {
        siginfo_t some[AT_ONCE];
        struct { uint64_t offset; uint32_t flags; int32_t count; } arguments = { 0, queue, AT_ONCE };
        long got = ptrace(PTRACE_PEEKSIGINFO, thread->tid, &arguments, some);
        if (got < 0)
            doubt(ANSWERS(ESRCH), "cannot look at the signals that are due to thread %d", thread->tid);
        for (long i = 0; i < got; i++)
            if (!(thread->signal_mask >> (some[i].si_signo - 1) & 1))
                return true;
        if (got == AT_ONCE)
            return one_of_many_is_due(thread);
    }
    return false;
}

/*
 * A thread frozen a second time in the same wait is in restart_syscall, and the number of the call it began with is nowhere in its registers. Most
 * code loads it by the instruction before the system call: mov eax, imm32. SYS_restart_syscall when it does not.
 */
static uint64_t number_before_restart(const struct thread *thread)
{
    unsigned char code[7];
    uint32_t number;
    if (pread(thread->process->mem, code, sizeof code, (off_t)(thread->regs.rip - sizeof code)) != sizeof code)
        return SYS_restart_syscall;
    memcpy(&number, code + 1, sizeof number);
    bool understood = code[0] == 0xb8 && code[5] == 0x0f && code[6] == 0x05;
    if (understood && (number == SYS_poll || number == SYS_nanosleep || number == SYS_clock_nanosleep || number == SYS_futex))
        return number;
    return SYS_restart_syscall;
}

void interrupted_conceal(struct thread *thread)
{
    struct user_regs_struct *regs = &thread->regs;
    if ((long)regs->rax == RESTART_BLOCK) {
        if (regs->orig_rax == SYS_restart_syscall)
            regs->orig_rax = number_before_restart(thread);     /* the source's kernel restarts by its block, whatever this says */
        if (regs->orig_rax == SYS_poll && (int)regs->rdx < 0 && !signal_is_due(thread))
            enter_again(regs);
    }
    if ((long)regs->rax == -EINTR && waits_for_ever(regs) && !signal_is_due(thread))
        enter_again(regs);
}

/* ---- in a branch ---- */

/*
 * A sleep whose caller asked for the remaining time has it in memory: the kernel wrote it when it was interrupted. Other relative waits that the
 * kernel would continue by its restart block last their whole time again in a branch, unless it is known when they began (waits.c).
 */
static void sleep_what_is_left(struct user_regs_struct *regs)
{
    if (regs->orig_rax == SYS_nanosleep && regs->rsi)
        regs->rdi = regs->rsi;
    if (regs->orig_rax == SYS_clock_nanosleep && regs->r10 && !(regs->rsi & TIMER_ABSTIME))
        regs->rdx = regs->r10;
}

/* Where the call has the time that was left when it was frozen: a timespec, or a timeval (*unit is its fraction in ns). 0 = it has none. */
static uint64_t time_left_place(const struct user_regs_struct *regs, uint64_t *unit)
{
    *unit = 1;
    switch (regs->orig_rax) {
    case SYS_nanosleep: return regs->rsi;
    case SYS_clock_nanosleep: return regs->rsi & TIMER_ABSTIME ? 0 : regs->r10;
    case SYS_ppoll: return regs->rdx;
    case SYS_pselect6: return regs->r8;
    case SYS_select:
        *unit = 1000;
        return regs->r8;
    default: return 0;
    }
}

/* The branch goes on later than the source was frozen. A place that cannot be written keeps the time that was left then. */
static void shorten_wait(const struct user_regs_struct *regs, int memory, uint64_t passed_ns)
{
    uint64_t unit;
    int64_t left[2];
    uint64_t place = time_left_place(regs, &unit);
    if (!place || pread(memory, left, sizeof left, (off_t)place) != sizeof left || left[0] < 0 || left[0] >= COUNTABLE_SECONDS)
        return;
    int64_t nanoseconds = left[0] * NANOSECONDS + left[1] * (int64_t)unit - (int64_t)passed_ns;
    if (nanoseconds < 0)
        nanoseconds = 0;
    left[0] = nanoseconds / NANOSECONDS;
    left[1] = nanoseconds % NANOSECONDS / (int64_t)unit;
    if (pwrite(memory, left, sizeof left, (off_t)place) < 0)
        return;
}

/* Of a poll with a timeout at least the time since the freeze has passed. */
static void shorten_poll(struct user_regs_struct *regs, uint64_t passed_ns)
{
    int milliseconds = (int)regs->rdx, passed = (int)(passed_ns / 1000000);
    if (regs->orig_rax == SYS_poll && milliseconds > 0)
        regs->rdx = (uint64_t)(milliseconds > passed ? milliseconds - passed : 0);
}

/*
 * Of a wait whose beginning is known the rest is given to the call, in the room below the stack pointer that belongs to nobody: the time itself lies
 * where the program may use it again.
 */
static void shorten_known_wait(struct user_regs_struct *regs, int memory, uint64_t passed_ns)
{
    unsigned long long *argument = regs->orig_rax == SYS_nanosleep ? &regs->rdi : regs->orig_rax == SYS_clock_nanosleep ? &regs->rdx : &regs->r10;
    int64_t left[2];
    if (pread(memory, left, sizeof left, (off_t)*argument) != sizeof left || left[0] < 0 || left[0] >= COUNTABLE_SECONDS)
        return;
    int64_t nanoseconds = left[0] * NANOSECONDS + left[1] - (int64_t)passed_ns;
    if (nanoseconds < 0)
        nanoseconds = 0;
    left[0] = nanoseconds / NANOSECONDS;
    left[1] = nanoseconds % NANOSECONDS;
    uint64_t room = (regs->rsp - RED_ZONE - sizeof left) & ~15ull;
    if (pwrite(memory, left, sizeof left, (off_t)room) == sizeof left)
        *argument = room;
}

static void shorten(const struct thread *thread, struct user_regs_struct *regs, int memory)
{
    uint64_t now = monotonic_ns(), since_freeze = now - thread->process->world->frozen_ns;
    bool known = thread->wait_began && now > thread->wait_began;
    if (regs->orig_rax == SYS_poll)
        shorten_poll(regs, known ? now - thread->wait_began : since_freeze);
    else if (known)
        shorten_known_wait(regs, memory, now - thread->wait_began);
    else
        shorten_wait(regs, memory, since_freeze);
}

void interrupted_restart(const struct thread *thread, struct user_regs_struct *regs, int memory)
{
    bool in_syscall = (long)regs->orig_rax >= 0;
    if (in_syscall) {
        switch ((long)regs->rax) {
        case RESTART_BLOCK:
        case RESTART_NO_HANDLER:        /* also what was one with a block (seccomp_guard_restart) */
            if (regs->orig_rax == SYS_restart_syscall) {
                regs->rax = (uint64_t)-EINTR;       /* the block it would go on by is not here */
                break;
            }
            shorten(thread, regs, memory);
            sleep_what_is_left(regs);
            enter_again(regs);
            break;
        case RESTART_SYS:
        case RESTART_NO_INTERRUPT:
            enter_again(regs);
        }
    }
    regs->orig_rax = (uint64_t)-1;
}
