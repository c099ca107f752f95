#include "process_batch.h"
#include "files.h"
#include "memory.h"
#include "query.h"
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_MAP_VDSO_64 0x2003

struct context {
    struct compiled *compiled;
    struct plan *plan;
    struct process *process;
    struct batch batch;
    const char *label;
    struct file_opening *executable;
    uint64_t threads_ready;     /* futex word: how many threads of this process are complete */
};

static struct file_opening **executables;

/*
 * Anonymous areas are filled by UFFDIO_COPY, which places whole pages: 1.35 GB/s a core against 1.0 for process_vm_writev, which takes a fault
 * and clears each page first. Small areas are not worth their registration.
 */
#define USERFAULTFD_MINIMUM (256ull << 10)

static bool wants_userfaultfd(const struct vma *vma)
{
    return (vma->kind == VMA_ANONYMOUS || vma->kind == VMA_STACK) && !vma->shared && vma->end - vma->start >= USERFAULTFD_MINIMUM
        && (vma->protection & PROT_WRITE);
}

int process_batches_prepare(struct world *world, struct error *err)
{
    executables = must_alloc((size_t)world->process_count * sizeof *executables);
    for (int i = 0; i < world->process_count; i++) {
        if (world->processes[i]->zombie)
            continue;
        struct memory_map *map = world->processes[i]->map;
        for (int k = 0; k < map->vma_count && map->userfaultfd_aux < 0; k++)
            if (wants_userfaultfd(&map->vmas[k]))
                map->userfaultfd_aux = files_new_aux(world);
        executables[i] = files_for_executable(world->processes[i], err);
        if (!executables[i])
            return -1;
    }
    return 0;
}

/* ---- memory map ---- */

static int emit_sysv(struct context *context, const struct vma *vma, struct error *err)
{
    const struct shared_object *object = vma->object;
    uint64_t whole = (object->size + 4095) & ~4095ull;
    if (vma->offset || vma->end - vma->start != whole)
        return fail(err, "unsupported", "%s maps a part of the SysV segment %d, which cannot be forked", context->label, (int)object->inode);
    int flags = SHM_REMAP | (vma->protection & PROT_WRITE ? 0 : SHM_RDONLY) | (vma->protection & PROT_EXEC ? SHM_EXEC : 0);
    EMIT(&context->batch, context->label, SYS_shmat, object->inode, vma->start, (uint64_t)flags);
    return 0;
}

static int emit_vma(struct context *context, const struct vma *vma, struct error *err)
{
    if (vma->kind == VMA_VDSO || vma->kind == VMA_VSYSCALL)
        return 0;
    if (vma->object && vma->object->kind == SHARED_SYSV)
        return emit_sysv(context, vma, err);
    int flags = MAP_FIXED_NOREPLACE | MAP_NORESERVE | (vma->shared ? MAP_SHARED : MAP_PRIVATE);
    uint64_t fd = (uint64_t)-1, offset = 0;
    if (vma->kind == VMA_ANONYMOUS)
        flags |= MAP_ANONYMOUS;
    if (vma->kind == VMA_STACK)
        flags |= MAP_ANONYMOUS | MAP_GROWSDOWN;
    if (vma->kind == VMA_FILE) {
        fd = aux_slot(context->plan->world, vma->opening->aux);
        offset = vma->offset;
    }
    if (vma->kind == VMA_SHARED_OBJECT) {
        fd = aux_slot(context->plan->world, vma->object->aux);
        offset = vma->offset;
    }
    EMIT(&context->batch, context->label, SYS_mmap, vma->start, vma->end - vma->start, (uint64_t)vma->protection, (uint64_t)flags, fd, offset);
    return 0;
}

static void emit_layout(struct context *context)
{
    const struct memory_map *map = context->process->map;
    struct plan *plan = context->plan;
    struct {
        uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end, auxv;
        uint32_t auxv_size;
        int32_t exe_fd;
    } layout = {
        map->start_code, map->end_code, map->start_data, map->end_data, map->start_brk, map->brk, map->start_stack, map->arg_start,
        map->arg_end, map->env_start, map->env_end, plan_data(plan, map->auxv, map->auxv_size), (uint32_t)map->auxv_size,
        (int32_t)aux_slot(plan->world, context->executable->aux),
    };
    EMIT(&context->batch, context->label, SYS_prctl, PR_SET_MM, PR_SET_MM_MAP, plan_data(plan, &layout, sizeof layout), sizeof layout, 0);
}

static void emit_userfaultfd(struct context *context)
{
    struct memory_map *map = context->process->map;
    struct plan *plan = context->plan;
    if (map->userfaultfd_aux < 0)
        return;
    uint64_t slot = aux_slot(plan->world, map->userfaultfd_aux);
    struct uffdio_api api = { .api = UFFD_API };
    EMIT(&context->batch, context->label, SYS_userfaultfd, O_CLOEXEC);
    uint64_t cell = emit_result_cell(&context->batch);
    EMIT_FLAGS(&context->batch, context->label, OP_LOAD(0), SYS_dup3, cell, slot, O_CLOEXEC);
    EMIT_FLAGS(&context->batch, context->label, OP_LOAD(0), SYS_close, cell);
    EMIT(&context->batch, context->label, SYS_ioctl, slot, UFFDIO_API, plan_data(plan, &api, sizeof api));
    for (int i = 0; i < map->vma_count; i++) {
        struct vma *vma = &map->vmas[i];
        if (!wants_userfaultfd(vma))
            continue;
        struct uffdio_register area = { { vma->start, vma->end - vma->start }, UFFDIO_REGISTER_MODE_MISSING, 0 };
        EMIT(&context->batch, context->label, SYS_ioctl, slot, UFFDIO_REGISTER, plan_data(plan, &area, sizeof area));
        vma->by_userfaultfd = true;
    }
}

static int emit_memory(struct context *context, struct error *err)
{
    const struct memory_map *map = context->process->map;
    uint64_t arena_end = (context->plan->arena + ARENA_LIMIT);
    EMIT(&context->batch, context->label, SYS_munmap, 0, context->plan->arena);
    EMIT(&context->batch, context->label, SYS_munmap, arena_end, TASK_TOP - arena_end);
    EMIT(&context->batch, context->label, SYS_arch_prctl, ARCH_MAP_VDSO_64, map->vvar);
    for (int i = 0; i < map->vma_count; i++)
        if (emit_vma(context, &map->vmas[i], err) < 0)
            return -1;
    emit_layout(context);
    emit_userfaultfd(context);
    return 0;
}

/* ---- files ---- */

static bool is_deleted(const char *path)
{
    size_t length = strlen(path), suffix = sizeof " (deleted)" - 1;
    return length > suffix && strcmp(path + length - suffix, " (deleted)") == 0;
}

static void emit_directories(struct context *context)
{
    struct process *process = context->process;
    struct plan *plan = context->plan;
    /* A working directory that was removed cannot be entered again: the process then stands in /. */
    uint32_t flag = is_deleted(process->cwd) ? OP_MAY_FAIL : 0;
    emit_op(&context->batch, (struct op){ .number = SYS_chdir, .flags = flag, .arg = { plan_string(plan, process->cwd) } },
            "%s: working directory %s", context->label, process->cwd);
    if (strcmp(process->root, "/") != 0)
        emit_op(&context->batch, (struct op){ .number = SYS_chroot, .arg = { plan_string(plan, process->root) } }, "%s: root %s",
                context->label, process->root);
    EMIT(&context->batch, context->label, SYS_umask, (uint64_t)process->umask);
}

static void emit_descriptors(struct context *context)
{
    struct process *process = context->process;
    struct plan *plan = context->plan;
    EMIT(&context->batch, context->label, SYS_unshare, CLONE_FILES);
    for (int i = 0; i < process->fd_count; i++) {
        const struct fd_entry *entry = &process->fds[i];
        EMIT(&context->batch, context->label, SYS_dup3, SLOT(plan, entry->description), (uint64_t)entry->fd,
             entry->cloexec ? O_CLOEXEC : 0);
    }
    uint64_t first = (uint64_t)plan->world->slot_base;
    if (process->map->userfaultfd_aux >= 0) {       /* stays until the memory is filled */
        uint64_t kept = aux_slot(plan->world, process->map->userfaultfd_aux);
        EMIT(&context->batch, context->label, SYS_close_range, first, kept - 1, 0);
        first = kept + 1;
    }
    EMIT(&context->batch, context->label, SYS_close_range, first, ~0u, 0);
}

/* ---- threads ---- */

static int emit_parts(struct batch *batch, struct thread *thread, struct error *err)
{
    for (int i = 0; parts[i]; i++)
        if (parts[i]->emit && parts[i]->emit(batch, thread, err) < 0)
            return -1;
    return 0;
}

static void emit_thread_core(struct batch *batch, const struct thread *thread, const char *label)
{
    EMIT(batch, label, SYS_set_tid_address, thread->clear_tid);
    if (thread->robust_list)
        EMIT(batch, label, SYS_set_robust_list, thread->robust_list, thread->robust_list_size);
    if (thread->rseq)
        EMIT(batch, label, SYS_rseq, thread->rseq, thread->rseq_size, 0, thread->rseq_signature);
}

/* Place the batch; its last op is the wait that ptrace ends. Remembers that op's address. */
static uint64_t place_with_release(struct context *context, struct batch *batch, int thread_index)
{
    EMIT(batch, context->label, OP_SIGNAL, context->plan->arena + offsetof(struct arena_control, ready));
    int last = EMIT(batch, context->label, OP_WAIT, context->plan->arena + offsetof(struct arena_control, never), 1);
    uint64_t address = batch_place(batch);
    context->compiled->points[context->process->index][thread_index].op = address + (uint64_t)last * sizeof(struct op);
    return address;
}

static int emit_thread(struct context *context, int index, struct error *err)
{
    struct plan *plan = context->plan;
    struct thread *thread = &context->process->threads[index];
    struct batch batch = { .plan = plan };
    if (emit_parts(&batch, thread, err) < 0)
        return -1;
    emit_thread_core(&batch, thread, context->label);
    EMIT(&batch, context->label, OP_SIGNAL, context->threads_ready);
    uint64_t start = place_with_release(context, &batch, index);

    /* The interpreter's clone takes batch and fault record from the new stack. */
    uint64_t stack[2] = { start, plan->arena + offsetof(struct arena_control, fault) };
    int32_t tid = thread->ns_tid;
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM,
        .stack = plan_reserve(plan, 256), .stack_size = 128,
        .set_tid = plan_data(plan, &tid, sizeof tid), .set_tid_size = 1,
    };
    memcpy((char *)plan_local(plan, args.stack) + args.stack_size, stack, sizeof stack);
    emit_op(&context->batch, (struct op){ .number = OP_CLONE, .arg = { plan_data(plan, &args, sizeof args), sizeof args } },
            "%s: thread %d", context->label, tid);
    return 0;
}

static void emit_own(struct context *context)
{
    struct batch *own = plan_own(context->plan, context->process);
    for (int i = 0; i < own->count; i++) {
        struct op op = own->ops[i];
        const char *what = op.what ? plan_local(context->plan, op.what) : "";
        emit_op(&context->batch, op, "%s", what);
    }
    free(own->ops);
    own->ops = NULL;
    own->count = 0;
}

uint64_t process_batch(struct compiled *compiled, struct process *process, struct error *err)
{
    AUTO_FREE char *label = must_copy_string(process_label(process));
    struct context context = {
        .compiled = compiled, .plan = &compiled->plan, .process = process, .batch = { .plan = &compiled->plan }, .label = label,
        .executable = executables[process->index], .threads_ready = plan_reserve(&compiled->plan, sizeof(uint32_t)),
    };
    struct plan *plan = &compiled->plan;
    if (emit_memory(&context, err) < 0)
        return 0;
    emit_directories(&context);
    emit_descriptors(&context);
    EMIT(&context.batch, label, OP_SIGNAL, plan->arena + offsetof(struct arena_control, mapped));
    EMIT(&context.batch, label, OP_WAIT, compiled->gates + (uint64_t)process->index * sizeof(uint32_t), 1);
    if (process->map->userfaultfd_aux >= 0)
        EMIT(&context.batch, label, SYS_close, aux_slot(plan->world, process->map->userfaultfd_aux));
    /* Building the tree left a pending SIGCHLD where children ended; ignoring the signal for a moment discards it. */
    struct { uint64_t handler, flags, restorer, mask; } ignore = { 1, 0, 0, 0 }, standard = { 0, 0, 0, 0 };
    EMIT(&context.batch, label, SYS_rt_sigaction, SIGCHLD, plan_data(plan, &ignore, sizeof ignore), 0, 8);
    EMIT(&context.batch, label, SYS_rt_sigaction, SIGCHLD, plan_data(plan, &standard, sizeof standard), 0, 8);
    for (int i = 1; i < process->thread_count; i++)
        if (emit_thread(&context, i, err) < 0)
            return 0;
    emit_own(&context);
    if (process->thread_count > 1)
        EMIT(&context.batch, label, OP_WAIT, context.threads_ready, (uint64_t)(process->thread_count - 1));
    /* The leader's parts come after the other threads': a change of credentials makes the memory undumpable for all. */
    if (emit_parts(&context.batch, &process->threads[0], err) < 0)
        return 0;
    emit_thread_core(&context.batch, &process->threads[0], label);
    return place_with_release(&context, &context.batch, 0);
}
