/*
 * Single syscalls in a stopped thread, and the cave (cave.S): code at the unused end of the vdso's last page from which a thread of the source makes
 * one and finds back to its program by itself.
 */
#include "inject_cave.h"
#include "doubt.h"
#include "freeze.h"
#include "inject.h"
#include "memory.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define VDSO_SIZE (2 * PAGE)
#define STOP_TIMEOUT_NS (10ull * 1000 * 1000 * 1000)
#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

/* ---- registers ---- */

int set_registers(pid_t tid, const struct user_regs_struct *regs, struct error *err)
{
    struct iovec io = { (void *)regs, sizeof *regs };
    if (INSIST(ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &io)) < 0)
        return fail_errno(err, "cannot set the registers of thread %d", tid);
    return 0;
}

int get_registers(pid_t tid, struct user_regs_struct *regs, struct error *err)
{
    struct iovec io = { regs, sizeof *regs };
    if (ptrace(PTRACE_GETREGSET, tid, NT_PRSTATUS, &io) < 0)
        return fail_errno(err, "cannot read the registers of thread %d", tid);
    return 0;
}

int set_signal_mask(pid_t tid, uint64_t mask, struct error *err)
{
    if (INSIST(ptrace(PTRACE_SETSIGMASK, tid, sizeof mask, &mask)) < 0)
        return fail_errno(err, "cannot set the signal mask of thread %d", tid);
    return 0;
}

int give_back(const struct thread *thread, struct error *err)
{
    struct error first = { 0 };
    /* The mask before the registers: as long as these lead into our code, `tidy` finds the mask there as well. */
    int status = set_signal_mask(thread->tid, thread->signal_mask, &first) == 0 ? 0 : set_signal_mask(thread->tid, thread->signal_mask, err);
    if (set_registers(thread->tid, &thread->regs, &first) == 0)
        return status;
    return status | set_registers(thread->tid, &thread->regs, err);
}

/*
 * Where a thread goes on if nobody sets its registers again: an interrupted syscall is started once more, one with a restart block by
 * restart_syscall (the block is still there: no syscall of a batch replaces it).
 */
struct resume_frame resume_frame_of(const struct thread *thread)
{
    const struct user_regs_struct *regs = &thread->regs;
    struct resume_frame frame = {
        .signal_mask = thread->signal_mask, .r15 = regs->r15, .r14 = regs->r14, .r13 = regs->r13, .r12 = regs->r12, .rbp = regs->rbp,
        .rbx = regs->rbx, .r11 = regs->r11, .r10 = regs->r10, .r9 = regs->r9, .r8 = regs->r8, .rax = regs->rax, .rcx = regs->rcx,
        .rdx = regs->rdx, .rsi = regs->rsi, .rdi = regs->rdi, .rip = regs->rip, .cs = regs->cs, .flags = regs->eflags, .rsp = regs->rsp,
        .ss = regs->ss,
    };
    long result = (long)regs->rax;
    if ((long)regs->orig_rax >= 0 && (result == -512 || result == -513 || result == -514 || result == -516)) {
        frame.rax = result == -516 ? SYS_restart_syscall : regs->orig_rax;
        frame.rip -= 2;
    }
    return frame;
}

/* ---- single syscalls ---- */

static uint64_t syscall_offset, cave_offset;

int inject_prepare(struct error *err)
{
    const unsigned char *vdso = (const unsigned char *)getauxval(AT_SYSINFO_EHDR);
    if (!vdso)
        return fail(err, "internal", "this process has no vdso");
    for (uint64_t i = 0; i < VDSO_SIZE - 1 && !syscall_offset; i++)
        if (vdso[i] == 0x0f && vdso[i + 1] == 0x05)
            syscall_offset = i;
    if (!syscall_offset)
        return fail(err, "internal", "found no syscall instruction in the vdso");
    uint64_t used = VDSO_SIZE;
    while (used && vdso[used - 1] == 0)
        used--;
    cave_offset = (used + 63) & ~63ull;
    if (cave_offset + (uint64_t)(cave_end - cave_start) > VDSO_SIZE)
        return fail(err, "internal", "the vdso of this kernel leaves no room at its end");
    return 0;
}

/*
 * SIGSTOP cannot be blocked: one more of them that waits in a stopped program, or one that came during the freeze, is met as soon as the thread
 * runs. It is kept back and sent again when the thread is as it was (return_stops).
 */
bool withholds_stop(int status, bool *withheld)
{
    if (status >> 16 || WSTOPSIG(status) != SIGSTOP)
        return false;
    *withheld = true;
    return true;
}

void return_stops(struct process *process)
{
    for (int i = 0; i < process->thread_count; i++) {
        if (process->threads[i].stop_withheld)
            kill(process->pid, SIGSTOP);
    }
}

static int wait_syscall_stop(pid_t tid, bool *withheld, struct error *err)
{
    uint64_t deadline = monotonic_ns() + STOP_TIMEOUT_NS;
    for (unsigned spins = 0;; spins++) {
        int status;
        pid_t got = waitpid(tid, &status, __WALL | WNOHANG);
        if (got < 0 || (got > 0 && !WIFSTOPPED(status)))
            return fail(err, "gone", "thread %d ended while it was being copied", tid);
        if (got > 0 && WSTOPSIG(status) == (SIGTRAP | 0x80))
            return 0;
        if (got > 0 && (status >> 16 == PTRACE_EVENT_STOP || withholds_stop(status, withheld))) {
            /* A program stopped by job control (Ctrl-Z) met our interrupt while it was stopped: it reports once more before it runs. */
            if (ptrace(PTRACE_SYSCALL, tid, 0, 0) < 0)
                return fail_errno(err, "cannot step thread %d", tid);
            continue;
        }
        if (got > 0)
            return fail(err, "internal", "thread %d stopped with %#x instead of at its syscall", tid, status);
        if (monotonic_ns() > deadline)
            return fail(err, "internal", "a syscall in thread %d did not end", tid);
        if (spins > 200)
            usleep(20);
        else
            sched_yield();
    }
}

static int place_at(pid_t tid, const struct user_regs_struct *base, uint64_t address, long number, const uint64_t args[6], struct error *err)
{
    struct user_regs_struct regs = *base;
    regs.orig_rax = (uint64_t)-1;       /* no syscall restart from here */
    regs.rip = address;
    regs.rax = (uint64_t)number;
    regs.rdi = args[0];
    regs.rsi = args[1];
    regs.rdx = args[2];
    regs.r10 = args[3];
    regs.r8 = args[4];
    regs.r9 = args[5];
    return set_registers(tid, &regs, err);
}

static int step(pid_t tid, struct error *err)
{
    return ptrace(PTRACE_SYSCALL, tid, 0, 0) < 0 ? fail_errno(err, "cannot step thread %d", tid) : 0;
}

/* A syscall takes two stops, at its entry and at its end. Each step but the last starts the thread and does not wait for it. */
static int enter(pid_t tid, bool *withheld, struct error *err)
{
    return wait_syscall_stop(tid, withheld, err) < 0 ? -1 : step(tid, err);
}

static int finish(pid_t tid, long *result, bool *withheld, struct error *err)
{
    struct user_regs_struct regs;
    if (wait_syscall_stop(tid, withheld, err) < 0 || get_registers(tid, &regs, err) < 0)
        return -1;
    *result = (long)regs.rax;
    return 0;
}

int inject_begin(pid_t tid, const struct user_regs_struct *base, uint64_t vdso, long number, const uint64_t args[6], struct error *err)
{
    return place_at(tid, base, vdso + syscall_offset, number, args, err) < 0 ? -1 : step(tid, err);
}

int inject_enter(pid_t tid, struct error *err)
{
    bool withheld;              /* in a branch nobody has sent one yet */
    return enter(tid, &withheld, err);
}

int inject_finish(pid_t tid, long *result, struct error *err)
{
    bool withheld;
    return finish(tid, result, &withheld, err);
}

int inject_syscall(pid_t tid, const struct user_regs_struct *base, uint64_t vdso, long number, const uint64_t args[6], long *result,
                   struct error *err)
{
    if (inject_begin(tid, base, vdso, number, args, err) < 0 || inject_enter(tid, err) < 0)
        return -1;
    return inject_finish(tid, result, err);
}

/* Write the cave into the leader's vdso: the kernel gives the process its own copy of that one page. */
int write_cave(const struct process *process, struct error *err)
{
    size_t size = (size_t)(cave_end - cave_start);
    AUTO_FREE char *code = must_alloc(size);
    struct resume_frame frame = resume_frame_of(&process->threads[0]);
    memcpy(code, cave_start, size);
    memcpy(code + (cave_frame - cave_start), &frame, sizeof frame);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", process->pid);
    AUTO_CLOSE int mem = open(path, O_RDWR | O_CLOEXEC);
    if (mem < 0 || pwrite(mem, code, size, (off_t)(process->map->vdso + cave_offset)) != (ssize_t)size)
        return fail_errno(err, "%s: cannot write to the end of its vdso", process_label(process));
    return 0;
}

static int begin_call(struct cave_call *call, struct error *err)
{
    struct thread *leader = &call->process->threads[0];
    uint64_t cave = call->process->map->vdso + cave_offset;
    /* The registers before the mask (give_back). */
    if (place_at(leader->tid, &leader->regs, cave, call->number, call->args, err) < 0 || set_signal_mask(leader->tid, ALL_SIGNALS, err) < 0)
        return -1;
    return step(leader->tid, err);
}

/* Each step is taken by all before the next: while one thread is waited for, the others run on the other processors. */
int cave_calls(struct cave_call *calls, int count, struct error *err)
{
    int begun = 0, status = 0;
    for (; begun < count && status == 0; begun++)
        status = calls[begun].status = begin_call(&calls[begun], err);
    for (int i = 0; i < begun; i++)
        if (calls[i].status == 0)
            status |= calls[i].status = enter(calls[i].process->threads[0].tid, &calls[i].process->threads[0].stop_withheld, err);
    for (int i = 0; i < begun; i++)
        if (calls[i].status == 0)
            status |= calls[i].status = finish(calls[i].process->threads[0].tid, &calls[i].result, &calls[i].process->threads[0].stop_withheld, err);
    for (int i = 0; i < begun; i++)
        status |= give_back(&calls[i].process->threads[0], err);
    for (int i = begun; i < count; i++)
        calls[i].status = -1;
    return status < 0 ? -1 : 0;
}

/* ---- what was left behind ---- */

bool inject_in_cave(const struct thread *thread)
{
    uint64_t cave = thread->process->map->vdso + cave_offset;
    return thread->regs.rip >= cave && thread->regs.rip < cave + (uint64_t)(cave_end - cave_start);
}

bool inject_in_scratch(const struct thread *thread)
{
    return thread->regs.rip >= SCRATCH_PLACE && thread->regs.rip < SCRATCH_PLACE + (uint64_t)(interp_end - interp_start);
}

uint64_t inject_cave_frame(const struct process *process)
{
    return process->map->vdso + cave_offset + (uint64_t)(cave_frame - cave_start);
}
