/* The last step of a branch: every thread gets the registers its counterpart had, the arena is unmapped, and all are let go together. */
#include "cgroups.h"
#include "descriptors.h"
#include "freeze.h"
#include "inject.h"
#include "interrupted.h"
#include "memory.h"
#include "parts/parts.h"
#include "proc.h"
#include "rebuild.h"

#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIDFD_THREAD_FLAG O_EXCL    /* PIDFD_THREAD, which older headers lack */
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
    while (count < wanted && (entry = directory_next(directory, path, err)))
        if (atoi(entry->d_name) > 0 && !(without_first && atoi(entry->d_name) == pid))
            tids[count++] = atoi(entry->d_name);
    closedir(directory);
    if (count != wanted)
        return fail(err, "internal", "a process of the branch has %d threads, not %d", count, wanted);
    return 0;
}

/* A process of the branch, and the host's ids of its threads. */
struct released {
    const struct process *process;
    pid_t pid;
    pid_t *tids;                /* tids[k] is the counterpart of thread k; in any order before they are identified */
};

static int take_process(struct released *released, struct error *err)
{
    const struct process *process = released->process;
    int count = process->thread_count;
    released->tids = must_alloc((size_t)count * sizeof *released->tids);
    if (count == 1 && !process->leader_ended)
        released->tids[0] = released->pid;
    else if (list_threads(released->pid, process->leader_ended, released->tids, count, err) < 0)
        return -1;
    for (int i = 0; i < count; i++) {
        if (ptrace(PTRACE_SEIZE, released->tids[i], 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_SUSPEND_SECCOMP) < 0)
            return fail_errno(err, "cannot take thread %d of the branch", released->tids[i]);
        ptrace(PTRACE_INTERRUPT, released->tids[i], 0, 0);
    }
    return 0;
}

static int identify_threads(const struct compiled *compiled, struct released *released, struct error *err)
{
    int count = released->process->thread_count;
    AUTO_FREE pid_t *found = must_alloc((size_t)count * sizeof *found);
    memcpy(found, released->tids, (size_t)count * sizeof *found);
    for (int i = 0; i < count; i++) {
        int stop_signal;
        if (wait_for_stop(found[i], &stop_signal, monotonic_ns() + STOP_TIMEOUT_NS) < 0)
            return fail(err, "internal", "thread %d of the branch ended early", found[i]);
        int index = identify(compiled, released->process, found[i], err);
        if (index < 0)
            return -1;
        released->tids[index] = found[i];
    }
    return 0;
}

static int begin_unmapping(const struct compiled *compiled, const struct released *released, struct error *err)
{
    struct user_regs_struct regs;
    if (get_registers(released->tids[0], &regs, err) < 0)
        return -1;
    uint64_t args[6] = { compiled->plan.arena, (compiled->plan.used + 4095) & ~4095ull };
    return inject_begin(released->tids[0], &regs, released->process->map->vdso, SYS_munmap, args, err);
}

static int finish_unmapping(const struct released *released, struct error *err)
{
    long result;
    if (inject_finish(released->tids[0], &result, err) < 0)
        return -1;
    return result == 0 ? 0 : fail(err, "internal", "%s: the arena cannot be unmapped", process_label(released->process));
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

static int set_process(const struct branch *branch, const struct released *released, struct error *err)
{
    const struct process *process = released->process;
    for (int i = 0; i < process->thread_count; i++)
        if (set_thread(&process->threads[i], released->tids[i], branch->memory[process->index], err) < 0)
            return -1;
    if (process_finish(process, released->tids[0], err) < 0)
        return -1;
    int stop = stop_signal_of(process);
    if (stop && kill(released->pid, stop) < 0)
        return fail_errno(err, "%s: cannot stop it in the branch", process_label(process));
    return 0;
}

/* Each step is taken with all processes before the next: those that have to run meanwhile do so on the other processors. */
static int prepare_all(const struct compiled *compiled, const struct branch *branch, struct released *all, int count, struct error *err)
{
    for (int i = 0; i < count; i++)
        if (take_process(&all[i], err) < 0)
            return -1;
    for (int i = 0; i < count; i++)
        if (identify_threads(compiled, &all[i], err) < 0)
            return -1;
    for (int i = 0; i < count; i++)
        if (seccomp_finish(all[i].process, all[i].tids, err) < 0 || begin_unmapping(compiled, &all[i], err) < 0)
            return -1;
    for (int i = 0; i < count; i++)
        if (inject_enter(all[i].tids[0], err) < 0)
            return -1;
    for (int i = 0; i < count; i++)
        if (finish_unmapping(&all[i], err) < 0 || set_process(branch, &all[i], err) < 0)
            return -1;
    return 0;
}

static const struct released *find_released(const struct process *process, const struct released *all, int count)
{
    for (int i = 0; i < count; i++)
        if (all[i].process == process)
            return &all[i];
    return NULL;
}

/* The branch's own open file, by one of its processes that has it; -1 if there is none. */
static int own_descriptor(const struct description *description, const struct released *holder)
{
    AUTO_CLOSE int pidfd = holder ? (int)syscall(SYS_pidfd_open, holder->tids[0], holder->process->leader_ended ? PIDFD_THREAD_FLAG : 0) : -1;
    return pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, description->holder_fd, 0);
}

/* Of asynchronous I/O: threads exist only now. What lies in a queue has nobody who could be asked for it. */
static int set_owner(const struct description *description, const struct released *all, int count, struct error *err)
{
    const struct thread *thread = description->owner_thread;
    if (!thread || !description->holder)
        return 0;
    AUTO_CLOSE int fd = own_descriptor(description, find_released(description->holder, all, count));
    const struct released *process = find_released(thread->process, all, count);
    struct f_owner_ex owner = { F_OWNER_TID, process ? process->tids[thread - thread->process->threads] : 0 };
    if (fd < 0 || fcntl(fd, F_SETOWN_EX, &owner) < 0)
        return fail_errno(err, "%s: cannot make thread %d its owner in the branch", description_label(description), thread->ns_tid);
    return 0;
}

static int set_owners(const struct world *world, const struct released *all, int count, struct error *err)
{
    for (int i = 0; i < world->description_count; i++)
        if (set_owner(world->descriptions[i], all, count, err) < 0)
            return -1;
    return 0;
}

static int place_in_cgroups(const struct branch *branch, const struct released *all, int count, struct error *err)
{
    for (int i = 0; i < count; i++)
        for (int k = 0; k < all[i].process->thread_count; k++)
            if (cgroups_place(branch, &all[i].process->threads[k], all[i].tids[k], err) < 0)
                return -1;
    return cgroups_finish(branch, err);
}

int release_branch(const struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err)
{
    struct released *all = must_alloc((size_t)world->process_count * sizeof *all);
    int count = 0;
    for (int i = 0; i < world->process_count; i++)
        if (!world->processes[i]->zombie)
            all[count++] = (struct released){ .process = world->processes[i], .pid = branch->pids[world->processes[i]->index] };
    if (prepare_all(compiled, branch, all, count, err) < 0 || set_owners(world, all, count, err) < 0 || place_in_cgroups(branch, all, count, err) < 0)
        return -1;              /* the engine ends the branch; nobody uses `all` again */
    for (int i = 0; i < count; i++)
        for (int k = 0; k < all[i].process->thread_count; k++)
            if (ptrace(PTRACE_DETACH, all[i].tids[k], 0, 0) < 0 && errno != ESRCH)     /* those let go before may have ended it meanwhile */
                return fail_errno(err, "cannot let thread %d of the branch go", all[i].tids[k]);
    for (int i = 0; i < count; i++)
        free(all[i].tids);
    free(all);
    return 0;
}
