/*
 * Freezing. Threads are stopped with PTRACE_SEIZE and PTRACE_INTERRUPT, which queue no signal and leave job control alone. A process's
 * threads are listed until no new one appears, and its children only then: what is stopped cannot fork. An orphan can still move to a
 * process listed earlier, so the children of all are read again until a whole pass finds nobody new.
 */
#include "freeze.h"
#include "doubt.h"
#include "inject.h"
#include "interrupted.h"
#include "parts/parts.h"
#include "proc.h"
#include "sharing.h"
#include "shield.h"
#include "tasks.h"
#include "waits.h"

#include <dirent.h>
#include <sched.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif
#define FIRST_PAUSE_US 1000     /* then twice as long each time */

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

int wait_for_stop(pid_t tid, int *stop_signal, uint64_t deadline)
{
    for (unsigned spins = 0;; spins++) {
        int status;
        pid_t got = waitpid(tid, &status, __WALL | WNOHANG);
        if (got == 0) {
            if (monotonic_ns() > deadline)
                return -1;
            /* A stop usually takes a few microseconds; after that give the processor away. */
            if (spins > 64)
                usleep(spins > 1000 ? 500 : 20);
            else
                sched_yield();
            continue;
        }
        if (got < 0 || !WIFSTOPPED(status))
            return -1;
        if (status >> 16 == PTRACE_EVENT_STOP) {
            int signal = WSTOPSIG(status);
            *stop_signal = signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU ? signal : 0;
            return 0;
        }
        /* A signal on its way was met first: deliver it, the interrupt is still pending. */
        int signal = status >> 16 ? 0 : WSTOPSIG(status);
        if (INSIST(ptrace(PTRACE_CONT, tid, 0, signal)) < 0)
            return -1;
    }
}

static struct process *add_process(struct world *world, pid_t pid, struct process *parent)
{
    struct process *process = must_alloc(sizeof *process);
    process->world = world;
    process->pid = process->group_leader = pid;
    process->parent = parent;
    process->index = world->process_count;
    process->mem = process->pagemap = process->pidfd = -1;
    world->processes = must_grow(world->processes, (size_t)(world->process_count + 1) * sizeof *world->processes);
    world->processes[world->process_count++] = process;
    return process;
}

static bool known_pid(const struct world *world, pid_t pid)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->group_leader == pid)
            return true;
    return false;
}

static int seize_thread(struct process *process, pid_t tid, struct error *err)
{
    if (ptrace(PTRACE_SEIZE, tid, 0, PTRACE_O_SUSPEND_SECCOMP | PTRACE_O_TRACESYSGOOD) < 0) {
        if (errno == ESRCH)
            return 0;
        if (errno != EPERM)
            return fail_errno(err, "cannot stop thread %d", tid);
        /* EPERM: a zombie or an exiting thread, or one that somebody traces. */
        struct error unread = { 0 };
        AUTO_FREE char *status = proc_read(&unread, 1 << 20, NULL, "/proc/%d/task/%d/status", process->pid, tid);
        if (!status && strcmp(unread.code, "gone") != 0)
            return fail(err, unread.code, "cannot stop thread %d: %s", tid, unread.message);
        const char *tracer = status ? proc_field(status, "TracerPid") : NULL;
        const char *state = status ? proc_field(status, "State") : NULL;
        if (tracer && atoi(tracer) > 0 && state && *state != 'Z' && *state != 'X')
            return fail(err, "unsupported", "%s is traced by another process (a debugger or strace); detach it and fork again",
                        process_label(process));
        return 0;
    }
    INSIST(ptrace(PTRACE_INTERRUPT, tid, 0, 0));
    process->threads = must_grow(process->threads, (size_t)(process->thread_count + 1) * sizeof *process->threads);
    process->threads[process->thread_count++] = (struct thread){ .process = process, .tid = tid };
    return 1;
}

/* Seize each thread not seen before; returns how many, or -1. */
static int seize_new_threads(struct process *process, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", process->pid);
    DIR *directory = opendir(path);
    if (!directory)
        return errno == ENOENT || errno == ESRCH ? 0 : fail_errno(err, "cannot list the threads of %s", process_label(process));
    int fresh = 0;
    struct dirent *entry;
    /* A list that cannot be read would make a zombie of the process: only one that has ended has none. */
    while ((errno = 0, entry = readdir(directory))) {
        pid_t tid = atoi(entry->d_name);
        bool known = tid <= 0;
        for (int i = 0; i < process->thread_count && !known; i++)
            known = process->threads[i].tid == tid;
        if (known)
            continue;
        int seized = process->thread_count < MAX_THREADS_PER_PROCESS
            ? seize_thread(process, tid, err)
            : fail(err, "limit", "%s has more than %d threads", process_label(process), MAX_THREADS_PER_PROCESS);
        if (seized < 0) {
            closedir(directory);
            return -1;
        }
        fresh += seized;
    }
    int number = errno;
    closedir(directory);
    errno = number;
    if (number && number != ENOENT && number != ESRCH)
        return fail_errno(err, "cannot list the threads of %s", process_label(process));
    return fresh;
}

/* Who is only waiting for its turn on a busy processor may get it the next time; who waits in the kernel says so by its state. */
static int refuse_unstopped(const struct process *process, pid_t tid, struct error *err)
{
    struct error ignored = { 0 };
    AUTO_FREE char *status = proc_read(&ignored, 1 << 20, NULL, "/proc/%d/task/%d/status", process->pid, tid);
    const char *state = status ? proc_field(status, "State") : NULL;
    if (state && *state == 'R')
        return fail(err, "busy", "%s: thread %d did not get the processor within %llu s", process_label(process), tid, FREEZE_TIMEOUT_NS / 1000000000ull);
    return fail(err, "unsupported", "%s: thread %d did not stop within %llu s (it waits in the kernel, state D); "
                "end what it waits for and fork again", process_label(process), tid, FREEZE_TIMEOUT_NS / 1000000000ull);
}

static int stop_threads(struct process *process, int from, uint64_t deadline, struct error *err)
{
    for (int i = from; i < process->thread_count;) {
        struct thread *thread = &process->threads[i];
        if (wait_for_stop(thread->tid, &thread->stop_signal, deadline) == 0) {
            i++;
            continue;
        }
        if (monotonic_ns() > deadline && kill(thread->tid, 0) == 0)
            return refuse_unstopped(process, thread->tid, err);
        memmove(thread, thread + 1, (size_t)(process->thread_count - i - 1) * sizeof *thread);
        process->thread_count--;
    }
    return 0;
}

static void leader_first(struct process *process)
{
    for (int i = 1; i < process->thread_count; i++) {
        if (process->threads[i].tid == process->pid) {
            struct thread leader = process->threads[i];
            process->threads[i] = process->threads[0];
            process->threads[0] = leader;
        }
    }
}

static int freeze_process(struct process *process, uint64_t deadline, struct error *err)
{
    for (;;) {
        int before = process->thread_count;
        int fresh = seize_new_threads(process, err);
        if (fresh < 0)
            return -1;
        if (fresh == 0)
            break;
        if (stop_threads(process, before, deadline, err) < 0)
            return -1;
    }
    leader_first(process);
    if (process->thread_count == 0)
        process->zombie = true;
    process->leader_ended = process->thread_count && process->threads[0].tid != process->pid;
    if (process->leader_ended)
        process->pid = process->threads[0].tid;
    return 0;
}

/* Add the children of a stopped process; returns how many were new. */
static int add_children(struct world *world, struct process *process, struct error *err)
{
    int fresh = 0;
    for (int i = 0; i < process->thread_count; i++) {
        struct error ignored = { 0 };
        AUTO_FREE char *text = proc_read(&ignored, 1 << 20, NULL, "/proc/%d/task/%d/children", process->pid, process->threads[i].tid);
        if (!text && strcmp(ignored.code, "gone") != 0)
            return fail(err, ignored.code, "the children of %s cannot be listed: %s", process_label(process), ignored.message);
        if (!text)
            continue;
        char *rest = text;
        for (long pid = strtol(rest, &rest, 10); pid > 0; pid = strtol(rest, &rest, 10)) {
            if (known_pid(world, (pid_t)pid))
                continue;
            if (world->process_count >= MAX_PROCESSES)
                return fail(err, "limit", "the workspace has more than %d processes", MAX_PROCESSES);
            add_process(world, (pid_t)pid, process);
            fresh++;
        }
    }
    return fresh;
}

static int freeze_tree(struct world *world, uint64_t deadline, struct error *err)
{
    add_process(world, world->source_pid, NULL);
    int frozen = 0;
    for (;;) {
        for (; frozen < world->process_count; frozen++) {
            if (freeze_process(world->processes[frozen], deadline, err) < 0)
                return -1;
            if (add_children(world, world->processes[frozen], err) < 0)
                return -1;
        }
        int fresh = 0;
        for (int i = 0; i < world->process_count; i++) {
            int found = add_children(world, world->processes[i], err);
            if (found < 0)
                return -1;
            fresh += found;
        }
        if (fresh == 0)
            break;
    }
    if (world->processes[0]->zombie)
        return fail(err, "gone", "the source's first process has ended");
    return 0;
}

/* An entry that vanished before it could be stopped, and its host pid with it, was never part of the picture. */
static void drop_vanished(struct world *world)
{
    int kept = 0;
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        if (process->zombie && kill(process->pid, 0) < 0)
            continue;
        process->index = kept;
        world->processes[kept++] = process;
    }
    world->process_count = kept;
}


static int conceal_stop(struct thread *thread)
{
    struct error ignored = { 0 };
    if (get_registers(thread->tid, &thread->regs, &ignored) < 0
        || ptrace(PTRACE_GETSIGMASK, thread->tid, sizeof thread->signal_mask, &thread->signal_mask) < 0)
        return -1;
    uint64_t result = thread->regs.rax;
    if (thread->regs.cs == CODE_SEGMENT_64)
        interrupted_conceal(thread);
    return thread->regs.rax != result ? set_registers(thread->tid, &thread->regs, &ignored) : 0;
}

/* Of a thread that was stopped and not read yet: what the stop has done to the call in which it waits. */
static void guard_restart(struct thread *thread)
{
    struct error ignored = { 0 };
    if (thread->tid <= 0 || thread->regs.rip)
        return;
    thread->unread = conceal_stop(thread) < 0 && conceal_stop(thread) < 0;
    if (thread->unread || thread->regs.cs != CODE_SEGMENT_64 || (long)thread->regs.rax != INTERRUPTED_WITH_RESTART_BLOCK)
        return;
    thread->wait_began = waits_began(thread);
    if ((long)thread->regs.orig_rax >= 0)
        seccomp_guard_restart(thread, &thread->regs, &ignored);
}

/* Before anything else is done: from here on the threads could be let go at any moment, and none would notice that it had been stopped. */
static void guard_restarts(struct world *world)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", process->pid);
        if (!process->zombie && process->mem < 0)
            process->mem = open(path, O_RDONLY | O_CLOEXEC);
        for (int k = 0; k < process->thread_count; k++)
            guard_restart(&process->threads[k]);
        for (int k = 0; k < process->thread_count; k++)
            process->threads[k].unread |= process->mem < 0;     /* its code tells which call a thread is in that was stopped before */
    }
}

int freeze(struct world *world, struct error *err)
{
    shield_raise();
    int status = freeze_tree(world, monotonic_ns() + FREEZE_TIMEOUT_NS, err);
    shield_kill_if_asked("freezing");
    guard_restarts(world);
    if (status == 0)
        drop_vanished(world);
    else
        thaw(world);
    world->frozen_ns = monotonic_ns();
    shield_lower();
    return status;
}

void thaw(struct world *world)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        for (int k = 0; k < process->thread_count; k++) {
            struct thread *thread = &process->threads[k];
            if (thread->tid <= 0)
                continue;
            if (INSIST(ptrace(PTRACE_DETACH, thread->tid, 0, 0)) < 0 && errno == ESRCH) {
                /* Not stopped yet (a failed freeze): bring it to a stop, since only a stopped tracee can be detached. */
                int stop_signal;
                ptrace(PTRACE_INTERRUPT, thread->tid, 0, 0);
                if (wait_for_stop(thread->tid, &stop_signal, monotonic_ns() + 200000000ull) == 0)
                    ptrace(PTRACE_DETACH, thread->tid, 0, 0);
            }
            thread->tid = -thread->tid;
        }
    }
}

/* ---- what passes by itself ---- */

static void forget(struct world *world)
{
    for (int i = 0; i < world->process_count; i++) {
        close_fd(&world->processes[i]->mem);
        free(world->processes[i]->threads);
        free(world->processes[i]);
    }
    world->process_count = 0;
}

/* SIGKILL, sent before its sender was stopped or by a timer, ends even who stands still; such a one answers no request any more. */
static bool still_stands(pid_t tid)
{
    uint64_t mask;
    return ptrace(PTRACE_GETSIGMASK, tid, sizeof mask, &mask) == 0;
}

static bool has_ended(pid_t pid)
{
    struct error unread = { 0 };
    AUTO_FREE char *status = proc_read(&unread, 1 << 20, NULL, "/proc/%d/status", pid);
    const char *state = status ? proc_field(status, "State") : NULL;
    if (!status)
        return strcmp(unread.code, "gone") == 0;
    return !state || *state == 'Z' || *state == 'X';
}

/*
 * Is there anything in the picture that was only met on its way to something else? Whoever shares its parent's memory is between vfork and exec; who was
 * killed after it had been stopped still ends; who became another program in a thread that was not its first has changed its number.
 */
static int find_passing(const struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i], *parent = process->parent;
        if (process->zombie && !has_ended(process->pid))
            return fail(err, "busy", "%s was not stopped", process_label(process));
        for (int k = 0; k < process->thread_count; k++) {
            if (process->threads[k].unread)
                return fail(err, "busy", "%s cannot be looked at while it stands still; fork again", process_label(process));
            if (!still_stands(process->threads[k].tid))
                return fail(err, "busy", "%s was ended while it was being stopped", process_label(process));
        }
        if (!process->zombie && parent && !parent->zombie && sharing_memory(parent->pid, process->pid) == 1)
            return fail(err, "unsupported", "%s shares its memory with %s (vfork, or clone with CLONE_VM), which cannot be forked; let it execute a "
                        "program, or end it", process_label(process), process_label(parent));
    }
    return 0;
}

int freeze_whole(struct world *world, struct error *err)
{
    uint64_t deadline = monotonic_ns() + FREEZE_PATIENCE_NS;
    for (useconds_t pause = FIRST_PAUSE_US;; pause *= 2) {
        if (freeze(world, err) < 0)
            return -1;
        struct error passing = { 0 };
        if (find_passing(world, &passing) == 0)
            return 0;
        thaw(world);
        if (monotonic_ns() + pause * 1000ull > deadline) {
            *err = passing;
            return -1;
        }
        forget(world);
        usleep(pause);
    }
}

void freeze_blame(const struct world *world, struct error *err)
{
    for (int i = 1; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        bool whole = true;
        for (int k = 0; k < process->thread_count && whole; k++)
            whole = still_stands(process->threads[k].tid);
        if (whole || has_ended(world->source_pid))
            continue;
        struct error cause = *err;
        *err = (struct error){ 0 };
        fail(err, "busy", "%s was ended while it was being copied: %s", process_label(process), cause.message);
        return;
    }
}
