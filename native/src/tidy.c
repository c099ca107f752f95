#include "tidy.h"
#include "freeze.h"
#include "hold.h"
#include "inject.h"
#include "memory.h"
#include "tasks.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PATIENCE_NS (5ull * 1000 * 1000 * 1000)
#define PAUSE_US 100000
#define SHIELD_PAUSE_US 2000
#define MOST_OPS 65536
#define ANY_ACCESS (PROT_READ | PROT_WRITE | PROT_EXEC)

static const struct vma *leftover(const struct process *process)
{
    for (int i = 0; i < process->map->vma_count; i++) {
        const struct vma *vma = &process->map->vmas[i];
        if (vma->start == SCRATCH_PLACE && vma->kind == VMA_ANONYMOUS && !vma->shared && vma->protection == ANY_ACCESS)
            return vma;
    }
    return NULL;
}

static bool read_source(const struct process *process, uint64_t address, void *data, size_t size)
{
    return pread(process->mem, data, size, (off_t)address) == (ssize_t)size;
}

/* The batch that a thread runs ends in an OP_RESUME, which has the address of its way back; 0 = not found. */
static uint64_t frame_of_batch(const struct thread *thread)
{
    uint64_t at = thread->regs.rip == SCRATCH_PLACE ? thread->regs.rdi : thread->regs.r12;
    struct op op;
    if (thread->regs.rip >= SCRATCH_PLACE + (uint64_t)(interp_resume - interp_start))
        return 0;
    for (int i = 0; i < MOST_OPS && read_source(thread->process, at, &op, sizeof op); i++, at += sizeof op)
        if (op.number == OP_RESUME)
            return op.arg[0];
    return 0;
}

static void set_from_frame(struct user_regs_struct *regs, const struct resume_frame *frame)
{
    regs->r15 = frame->r15, regs->r14 = frame->r14, regs->r13 = frame->r13, regs->r12 = frame->r12;
    regs->rbp = frame->rbp, regs->rbx = frame->rbx, regs->r11 = frame->r11, regs->r10 = frame->r10;
    regs->r9 = frame->r9, regs->r8 = frame->r8, regs->rax = frame->rax, regs->rcx = frame->rcx;
    regs->rdx = frame->rdx, regs->rsi = frame->rsi, regs->rdi = frame->rdi;
    regs->rip = frame->rip, regs->cs = frame->cs, regs->eflags = frame->flags, regs->rsp = frame->rsp, regs->ss = frame->ss;
    regs->orig_rax = (uint64_t)-1;      /* the frame starts an interrupted call again by itself */
}

/*
 * Take a thread out of our code by the way back that is written there: a stopped job (Ctrl-Z) does not go it by itself. Returns 1 if it must be left
 * to go on, being in the last instructions of it.
 */
static int bring_back(struct thread *thread, struct error *err)
{
    struct process *process = thread->process;
    struct resume_frame frame;
    uint64_t at = inject_in_cave(thread) ? inject_cave_frame(process) : frame_of_batch(thread);
    if (!at || !read_source(process, at, &frame, sizeof frame))
        return 1;
    set_from_frame(&thread->regs, &frame);
    thread->signal_mask = frame.signal_mask;
    return give_back(thread, err);
}

static int tidy_process(struct process *process, struct error *err)
{
    int busy = 0;
    if (memory_read_map(process, err) < 0)
        return -1;
    for (int i = 0; i < process->thread_count; i++) {
        struct thread *thread = &process->threads[i];
        /* Whom nothing was left with has been stopped all the same, which its epoll_wait must not tell (interrupted.h). */
        bool ours = inject_in_cave(thread) || inject_in_scratch(thread);
        int left = ours ? bring_back(thread, err) : set_registers(thread->tid, &thread->regs, err);
        if (left < 0)
            return -1;
        busy += left;
    }
    const struct vma *vma = leftover(process);
    if (vma && !busy && inject_unmap(process, vma->start, vma->end - vma->start, err) < 0)
        return -1;
    return busy;
}

/* Returns how many threads are still on their way, or -1. */
static int tidy_frozen(struct world *world, struct error *err)
{
    int busy = 0;
    if (tasks_read(world, err) < 0)
        return -1;
    for (int i = 0; i < world->process_count; i++) {
        int left = world->processes[i]->zombie ? 0 : tidy_process(world->processes[i], err);
        if (left < 0)
            return -1;
        busy += left;
    }
    return busy;
}

int tidy(pid_t source_pid, struct error *err)
{
    uint64_t deadline = monotonic_ns() + PATIENCE_NS;
    for (;;) {
        struct world *world = must_alloc(sizeof *world);
        world->source_pid = source_pid;
        if (freeze(world, err) < 0) {
            if (strcmp(err->code, "unsupported") != 0 || monotonic_ns() > deadline) {
                hold_end(source_pid);
                return -1;
            }
            *err = (struct error){ 0 };         /* the killed fork's child may still trace it, behind its shield */
            usleep(SHIELD_PAUSE_US);
            continue;
        }
        hold_end(source_pid);       /* what is done now lets single threads take steps */
        int busy = tidy_frozen(world, err);
        thaw(world);
        if (busy <= 0)
            return busy;
        if (monotonic_ns() > deadline)
            return fail(err, "internal", "%d threads are still in what a killed fork had begun", busy);
        usleep(PAUSE_US);
    }
}
