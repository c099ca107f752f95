/* The last step of a branch: every thread gets the registers its counterpart had, the arena is unmapped, and all are let go together. */
#include "freeze.h"
#include "inject.h"
#include "interrupted.h"
#include "memory.h"
#include "parts/parts.h"
#include "rebuild.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define STOP_TIMEOUT_NS (10ull * 1000 * 1000 * 1000)

/*
 * Which thread of the source is this one? Its interpreter waits on an op that is its own, or stands at the one before: that counts the thread as
 * ready and then wakes us, so we may be here before it went on.
 */
static int identify(const struct compiled *compiled, const struct process *process, pid_t tid, struct error *err)
{
    struct user_regs_struct regs;
    if (get_registers(tid, &regs, err) < 0)
        return -1;
    for (int i = 0; i < process->thread_count; i++)
        if (regs.r12 == compiled->points[process->index][i].op || regs.r12 + sizeof(struct op) == compiled->points[process->index][i].op)
            return i;
    return fail(err, "internal", "%s: a thread of the branch is not where it should wait", process_label(process));
}

static int list_threads(pid_t pid, bool without_first, pid_t *tids, int wanted, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *directory = opendir(path);
    if (!directory)
        return fail_errno(err, "cannot open %s", path);
    int count = 0;
    struct dirent *entry;
    while ((entry = readdir(directory)) && count < wanted)
        if (atoi(entry->d_name) > 0 && !(without_first && atoi(entry->d_name) == pid))
            tids[count++] = atoi(entry->d_name);
    closedir(directory);
    if (count != wanted)
        return fail(err, "internal", "a process of the branch has %d threads, not %d", count, wanted);
    return 0;
}

/* tids[k] becomes the host's id of the counterpart of thread k. */
static int take_process(const struct compiled *compiled, const struct process *process, pid_t pid, pid_t *tids, struct error *err)
{
    int count = process->thread_count;
    AUTO_FREE pid_t *found = must_alloc((size_t)count * sizeof *found);
    if (count == 1 && !process->leader_ended)
        found[0] = pid;
    else if (list_threads(pid, process->leader_ended, found, count, err) < 0)
        return -1;
    for (int i = 0; i < count; i++) {
        if (ptrace(PTRACE_SEIZE, found[i], 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP) < 0)
            return fail_errno(err, "cannot take thread %d of the branch", found[i]);
        ptrace(PTRACE_INTERRUPT, found[i], 0, 0);
    }
    for (int i = 0; i < count; i++) {
        int stop_signal;
        if (wait_for_stop(found[i], &stop_signal, monotonic_ns() + STOP_TIMEOUT_NS) < 0)
            return fail(err, "internal", "thread %d of the branch ended early", found[i]);
        int index = identify(compiled, process, found[i], err);
        if (index < 0)
            return -1;
        tids[index] = found[i];
    }
    return 0;
}

static int unmap_arena(const struct compiled *compiled, const struct process *process, pid_t tid, struct error *err)
{
    struct user_regs_struct regs;
    long result;
    if (get_registers(tid, &regs, err) < 0)
        return -1;
    uint64_t args[6] = { compiled->plan.arena, (compiled->plan.used + 4095) & ~4095ull };
    if (inject_syscall(tid, &regs, process->map->vdso, SYS_munmap, args, &result, err) < 0)
        return -1;
    return result == 0 ? 0 : fail(err, "internal", "%s: the arena cannot be unmapped", process_label(process));
}

static int set_thread(const struct thread *thread, pid_t tid, int memory, struct error *err)
{
    struct user_regs_struct regs = thread->regs;
    interrupted_restart(thread, &regs, memory);
    if (attributes_finish(thread, tid, err) < 0 || set_registers(tid, &regs, err) < 0)
        return -1;
    struct iovec io = { thread->xstate, thread->xstate_size };
    if (ptrace(PTRACE_SETREGSET, tid, NT_X86_XSTATE, &io) < 0)
        return fail_errno(err, "cannot set the extended registers of thread %d", tid);
    return set_signal_mask(tid, thread->signal_mask, err);
}

/* 0 = it runs. A signal that would not stop it now, since it is blocked or has a handler meanwhile, is replaced by SIGSTOP. */
static int stop_signal_of(const struct process *process)
{
    const struct thread *leader = &process->threads[0];
    int signal = leader->stop_signal;
    if (!signal)
        return leader->stop_withheld ? SIGSTOP : 0;
    bool blocked = leader->signal_mask >> (signal - 1) & 1;
    return signal != SIGSTOP && (blocked || process->actions[signal].handler) ? SIGSTOP : signal;
}

static int prepare_process(const struct compiled *compiled, const struct process *process, const struct branch *branch, pid_t *tids,
                           struct error *err)
{
    pid_t pid = branch->pids[process->index];
    if (take_process(compiled, process, pid, tids, err) < 0)
        return -1;
    if (seccomp_finish(process, tids, err) < 0)
        return -1;
    if (unmap_arena(compiled, process, tids[0], err) < 0)
        return -1;
    for (int i = 0; i < process->thread_count; i++)
        if (set_thread(&process->threads[i], tids[i], branch->memory[process->index], err) < 0)
            return -1;
    int stop = stop_signal_of(process);
    if (stop && kill(pid, stop) < 0)
        return fail_errno(err, "%s: cannot stop it in the branch", process_label(process));
    return 0;
}

int release_branch(const struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err)
{
    pid_t **tids = must_alloc((size_t)world->process_count * sizeof *tids);
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        if (process->zombie)
            continue;
        tids[i] = must_alloc((size_t)process->thread_count * sizeof **tids);
        if (prepare_process(compiled, process, branch, tids[i], err) < 0)
            return -1;          /* the engine ends the branch; nobody uses tids again */
    }
    for (int i = 0; i < world->process_count; i++)
        for (int k = 0; tids[i] && k < world->processes[i]->thread_count; k++)
            if (ptrace(PTRACE_DETACH, tids[i][k], 0, 0) < 0 && errno != ESRCH)     /* those let go before may have ended it meanwhile */
                return fail_errno(err, "cannot let thread %d of the branch go", tids[i][k]);
    for (int i = 0; i < world->process_count; i++)
        free(tids[i]);
    free(tids);
    return 0;
}
