#include "process_batch.h"
#include "files.h"
#include "kinds/kinds.h"
#include "locks.h"
#include "memory_batch.h"
#include "namespace_plan.h"
#include "parts/parts.h"
#include "query.h"
#include "sharing.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

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

int process_batches_prepare(struct world *world, struct error *err)
{
    executables = must_alloc((size_t)world->process_count * sizeof *executables);
    for (int i = 0; i < world->process_count; i++) {
        if (world->processes[i]->zombie)
            continue;
        memory_batch_prepare(world->processes[i]);
        executables[i] = files_for_executable(world->processes[i], err);
        if (!executables[i])
            return -1;
    }
    return 0;
}

/* ---- files ---- */

static bool is_deleted(const char *path)
{
    size_t length = strlen(path), suffix = sizeof " (deleted)" - 1;
    return length > suffix && strcmp(path + length - suffix, " (deleted)") == 0;
}

void process_emit_working_directory(struct batch *batch, const struct process *process)
{
    struct plan *plan = batch->plan;
    const char *label = process_label(process);
    /* A root directory that was removed is entered with it (parts/root.c). */
    uint32_t flag = is_deleted(process->cwd) ? TOLERATING(GONE_NAME) : 0;
    if (files_of_dead(plan->world, process->cwd) && strcmp(process->cwd, process->root) != 0)
        root_emit_into_dead(batch, process, process->cwd, false, label);
    else if (process->directory)
        emit_op(batch, (struct op){ .number = SYS_fchdir, .arg = { aux_slot(plan->world, process->directory->aux) } },
                "%s: working directory %s", label, process->cwd);
    else
        emit_op(batch, (struct op){ .number = SYS_chdir, .flags = flag, .arg = { plan_string(plan, process->cwd) } },
                "%s: working directory %s", label, process->cwd);
}

/* In a nested user namespace a process may stand where it could not go: it went there before, or its parent did. */
static bool stands_there_already(const struct process *process)
{
    const struct process *parent = process->parent;
    const struct namespace *user = process->namespaces[NAMESPACE_USER];
    if (!user->nested)
        return false;
    if (!parent || parent->zombie || parent->namespaces[NAMESPACE_USER] != user)
        return true;
    return process->directory == parent->directory && strcmp(process->cwd, parent->cwd) == 0
        && process->namespaces[NAMESPACE_MNT] == parent->namespaces[NAMESPACE_MNT];
}

static void emit_directories(struct context *context)
{
    struct process *process = context->process;
    if (!stands_there_already(process))
        process_emit_working_directory(&context->batch, process);
    EMIT(&context->batch, context->label, SYS_umask, (uint64_t)process->umask);
}

static int live_processes(const struct world *world)
{
    int live = 0;
    for (int i = 0; i < world->process_count; i++)
        live += !world->processes[i]->zombie;
    return live;
}

static int with_table_of_their_own(const struct world *world)
{
    int count = 0;
    for (int i = 0; i < world->process_count; i++)
        count += !world->processes[i]->zombie && !world->processes[i]->files_group;
    return count;
}

static bool table_is_kept(const struct world *world)
{
    return with_table_of_their_own(world) < live_processes(world);
}

/*
 * First of all a process leaves the common table: what it opens for a moment while it makes its memory map would else be in the copies that others take.
 * Those who keep the table wait until nobody takes one any more.
 */
static void emit_own_table(struct context *context)
{
    static uint64_t left;       /* futex word: how many have */
    struct plan *plan = context->plan;
    const struct process *process = context->process;
    bool kept = table_is_kept(plan->world);
    if (kept && !left)
        left = plan_reserve(plan, sizeof(uint32_t));
    if (process->files_group) {
        EMIT(&context->batch, context->label, OP_WAIT, left, (uint64_t)with_table_of_their_own(plan->world));
        return;
    }
    EMIT(&context->batch, context->label, SYS_unshare, CLONE_FILES);
    if (kept)
        EMIT(&context->batch, context->label, OP_SIGNAL, left);
}

static void emit_descriptors(struct context *context)
{
    struct process *process = context->process;
    struct plan *plan = context->plan;
    bool first_of_group = process->files_group == process;
    locks_emit_taken(&context->batch, process);
    if (process->files_group && !first_of_group)
        return;
    /* Who keeps the common table with others fills it once nobody else makes descriptors in it any more. */
    if (first_of_group)
        EMIT(&context->batch, context->label, OP_WAIT, plan->arena + offsetof(struct arena_control, mapped), (uint64_t)live_processes(plan->world) - 1);
    for (int i = 0; i < process->fd_count; i++) {
        const struct fd_entry *entry = &process->fds[i];
        EMIT(&context->batch, context->label, SYS_dup3, SLOT(plan, entry->description), (uint64_t)entry->fd,
             entry->cloexec ? O_CLOEXEC : 0);
    }
    if (first_of_group)
        return;
    uint64_t first = (uint64_t)plan->world->slot_base;
    if (process->map->userfaultfd_aux >= 0) {       /* stays until the memory is filled */
        uint64_t kept = aux_slot(plan->world, process->map->userfaultfd_aux);
        EMIT(&context->batch, context->label, SYS_close_range, first, kept - 1, 0);
        first = kept + 1;
    }
    EMIT(&context->batch, context->label, SYS_close_range, first, ~0u, 0);
}

/* The slots of a table that several keep are closed by the first of them, once the others need them no more. */
static void emit_end_of_slots(struct context *context)
{
    static uint64_t done;       /* futex word: how many of the others are through */
    const struct process *process = context->process;
    struct plan *plan = context->plan;
    if (!process->files_group)
        return;
    if (!done)
        done = plan_reserve(plan, sizeof(uint32_t));
    if (process->files_group != process) {
        EMIT(&context->batch, context->label, OP_SIGNAL, done);
        return;
    }
    EMIT(&context->batch, context->label, OP_WAIT, done, (uint64_t)sharing_group_size(process) - 1);
    EMIT(&context->batch, context->label, SYS_close_range, (uint64_t)plan->world->slot_base, ~0u, 0);
}

/* ---- threads ---- */

static int emit_parts(struct batch *batch, struct thread *thread, struct error *err)
{
    for (int i = 0; parts[i]; i++)
        if (parts[i]->emit && parts[i]->emit(batch, thread, err) < 0)
            return -1;
    return 0;
}

/* Before the parts: a seccomp filter is the last of them, and may end whoever makes one of these calls later. */
static void emit_thread_core(struct batch *batch, const struct thread *thread, const char *label)
{
    EMIT(batch, label, SYS_set_tid_address, thread->clear_tid);
    if (thread->robust_list)
        EMIT(batch, label, SYS_set_robust_list, thread->robust_list, thread->robust_list_size);
    if (thread->rseq)
        EMIT(batch, label, SYS_rseq, thread->rseq, thread->rseq_size, 0, thread->rseq_signature);
}

uint64_t process_leader_gone(struct plan *plan, const struct process *process)
{
    static uint64_t words;
    if (!words)
        words = plan_reserve(plan, (size_t)plan->world->process_count * sizeof(uint32_t));
    return words + (uint64_t)process->index * sizeof(uint32_t);
}

static bool has_death_signal(const struct process *process)
{
    for (int i = 0; i < process->thread_count; i++)
        if (process->threads[i].attributes->death_signal)
            return true;
    return false;
}

bool process_leader_is_awaited(const struct process *process)
{
    const struct world *world = process->world;
    for (int i = 0; process->leader_ended && i < world->process_count; i++)
        if (world->processes[i]->parent == process && !world->processes[i]->zombie && has_death_signal(world->processes[i]))
            return true;
    return false;
}

/* Place the batch; its last op is the wait that ptrace ends. Remembers that op's address. 0 = the thread's filters would not let it get there. */
static uint64_t place_with_release(struct context *context, struct batch *batch, int thread_index, struct error *err)
{
    EMIT(batch, context->label, OP_SIGNAL, context->plan->arena + offsetof(struct arena_control, ready));
    int last = EMIT(batch, context->label, OP_WAIT, context->plan->arena + offsetof(struct arena_control, never), 1);
    if (seccomp_check_rest(batch, &context->process->threads[thread_index], err) < 0)
        return 0;
    uint64_t address = batch_place(batch);
    context->compiled->points[context->process->index][thread_index].op = address + (uint64_t)last * sizeof(struct op);
    return address;
}

static int emit_thread(struct context *context, int index, struct error *err)
{
    struct plan *plan = context->plan;
    struct thread *thread = &context->process->threads[index];
    struct batch batch = { .plan = plan, .who = context->label };
    emit_thread_core(&batch, thread, context->label);
    if (emit_parts(&batch, thread, err) < 0)
        return -1;
    EMIT(&batch, context->label, OP_SIGNAL, context->threads_ready);
    uint64_t start = place_with_release(context, &batch, index, err);
    if (!start)
        return -1;

    /* The interpreter's clone takes batch and fault record from the new stack. */
    uint64_t stack[2] = { start, plan->arena + offsetof(struct arena_control, fault) };
    int32_t tid = thread->ns_tid;
    struct clone_args args = {
        .flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM,
        .stack = plan_reserve(plan, 256), .stack_size = 128,
        .set_tid = plan_data(plan, &tid, sizeof tid), .set_tid_size = 1,
    };
    memcpy((char *)plan_local(plan, args.stack) + args.stack_size, stack, sizeof stack);
    struct pid_numbers numbers = thread->tids.count ? thread->tids : (struct pid_numbers){ 1, { tid } };
    struct nest_clone clone = nest_clone(&context->batch, context->process, &numbers, &args);
    emit_op(&context->batch, (struct op){ .number = OP_CLONE, .arg = { plan_data(plan, &args, sizeof args), sizeof args } },
            "%s: thread %d", context->label, tid);
    nest_clone_done(&context->batch, clone);
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

/* The first thread has ended in the source: here it starts the one that does what a leader does otherwise, last of all, and ends, too. */
static uint64_t end_leader(struct context *context, struct error *err)
{
    const struct process *process = context->process;
    if (emit_thread(context, 0, err) < 0)
        return 0;
    EMIT(&context->batch, context->label, SYS_prctl, PR_SET_NAME, plan_data(context->plan, process->leader_name, sizeof process->leader_name));
    EMIT(&context->batch, context->label, SYS_exit, (uint64_t)(process->leader_exit_code >> 8 & 0xff));
    return batch_place(&context->batch);
}

uint64_t process_batch(struct compiled *compiled, struct process *process, struct error *err)
{
    AUTO_FREE char *label = must_copy_string(process_label(process));
    struct context context = {
        .compiled = compiled, .plan = &compiled->plan, .process = process, .batch = { .plan = &compiled->plan, .who = label }, .label = label,
        .executable = executables[process->index], .threads_ready = plan_reserve(&compiled->plan, sizeof(uint32_t)),
    };
    struct plan *plan = &compiled->plan;
    emit_own_table(&context);
    if (memory_emit_maps(&context.batch, process, label, context.executable, err) < 0)
        return 0;
    if (!process->shares_fs)
        emit_directories(&context);
    emit_descriptors(&context);
    EMIT(&context.batch, label, OP_SIGNAL, plan->arena + offsetof(struct arena_control, mapped));
    EMIT(&context.batch, label, OP_WAIT, compiled->gates + (uint64_t)process->index * sizeof(uint32_t), 1);
    memory_emit_attributes(&context.batch, process, label);
    emit_end_of_slots(&context);
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
    pidfd_emit_of_threads(&context.batch, process, label);
    if (process->leader_ended)
        return end_leader(&context, err);
    /* The leader's parts come after the other threads': a change of credentials makes the memory undumpable for all. */
    emit_thread_core(&context.batch, &process->threads[0], label);
    if (emit_parts(&context.batch, &process->threads[0], err) < 0)
        return 0;
    return place_with_release(&context, &context.batch, 0, err);
}
