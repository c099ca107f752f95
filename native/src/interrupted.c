#include "interrupted.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef PTRACE_PEEKSIGINFO
#define PTRACE_PEEKSIGINFO 0x4209
#endif
#define SYSCALL_INSTRUCTION_SIZE 2
#define QUEUES 2                /* the thread's own, the process's */
#define AT_ONCE 16

/* From include/linux/errno.h: what a syscall returns inside the kernel when a signal or a tracer interrupted it. */
enum { RESTART_SYS = -512, RESTART_NO_INTERRUPT = -513, RESTART_NO_HANDLER = -514, RESTART_BLOCK = -516 };

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

/* A signal that will run a handler makes EINTR right. */
static bool signal_is_due(const struct thread *thread)
{
    for (uint32_t queue = 0; queue < QUEUES; queue++) {
        siginfo_t some[AT_ONCE];
        struct { uint64_t offset; uint32_t flags; int32_t count; } arguments = { 0, queue, AT_ONCE };
        long got;
        while ((got = ptrace(PTRACE_PEEKSIGINFO, thread->tid, &arguments, some)) > 0) {
            for (long i = 0; i < got; i++)
                if (!(thread->signal_mask >> (some[i].si_signo - 1) & 1))
                    return true;
            arguments.offset += (uint64_t)got;
        }
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

/*
 * A sleep whose caller asked for the remaining time has it in memory: the kernel wrote it when it was interrupted. Other relative waits that the
 * kernel would continue by its restart block last their whole time again in a branch: nobody can read how much was left.
 */
static void sleep_what_is_left(struct user_regs_struct *regs)
{
    if (regs->orig_rax == SYS_nanosleep && regs->rsi)
        regs->rdi = regs->rsi;
    if (regs->orig_rax == SYS_clock_nanosleep && regs->r10)
        regs->rdx = regs->r10;
}

void interrupted_restart(struct user_regs_struct *regs)
{
    bool in_syscall = (long)regs->orig_rax >= 0;
    if (in_syscall) {
        switch ((long)regs->rax) {
        case RESTART_BLOCK:
            if (regs->orig_rax == SYS_restart_syscall) {
                regs->rax = (uint64_t)-EINTR;       /* the block it would go on by is not here */
                break;
            }
            sleep_what_is_left(regs);
            enter_again(regs);
            break;
        case RESTART_SYS:
        case RESTART_NO_INTERRUPT:
        case RESTART_NO_HANDLER:
            enter_again(regs);
        }
    }
    regs->orig_rax = (uint64_t)-1;
}
