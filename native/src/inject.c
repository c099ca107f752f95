/*
 * Injection into the source. Each process gets one scratch mapping (the interpreter, then a region a thread); each thread runs one batch in
 * it. All threads of all processes run at once, so the cost is one ptrace round trip a thread, spread over the cores.
 *
 * livefork may be killed at any moment, and the kernel then lets every tracee run on from where it is. So nothing runs in the source that
 * does not find back by itself: a batch ends in a sleep (OP_PARK), during which the tracer takes the thread, followed by a return to the
 * interrupted program (OP_RESUME); the syscalls that map and unmap the scratch memory run from the cave (cave.S), which does the same.
 * No trap is used either: a forced SIGTRAP that is blocked or ignored would have its action reset by the kernel.
 */
#include "inject.h"
#include "doubt.h"
#include "inject_cave.h"
#include "freeze.h"
#include "memory.h"
#include "query.h"
#include "shield.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
/* Room for 1024 timers and 256 semaphores (parts/timers.c, parts/semaphore_undo.c); pages that are not used are not touched either. */
#define LEADER_DATA (160ul << 10)
#define LEADER_OPS (288ul << 10)
#define THREAD_DATA (12ul << 10)
#define THREAD_OPS (12ul << 10)
#define STOP_TIMEOUT_NS (10ull * 1000 * 1000 * 1000)
#define PARK_SECONDS 5          /* a tracer that lives takes a parked thread within microseconds */
#define MAX_PARTS 48
#define SPINS_BEFORE_A_CLOSER_LOOK 100
#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

struct query {
    struct thread *thread;
    bool leader;
    uint64_t base;              /* of the region in the source; the fault record lies first */
    char *data;
    size_t data_used, data_size;
    struct op *ops;
    int op_count, op_capacity;
    uint64_t ops_base;
    void *memo[MAX_PARTS];
};

/* ---- building a query ---- */

struct thread *query_thread(struct query *query) { return query->thread; }
bool query_is_leader(const struct query *query) { return query->leader; }

uint64_t query_reserve(struct query *query, size_t size)
{
    size_t at = query->data_used;
    query->data_used += (size + 15) & ~(size_t)15;
    if (query->data_used > query->data_size)
        end_at_once("a query needs more than %zu bytes", query->data_size);

    return query->base + at;
}

void *query_read(const struct query *query, uint64_t address)
{
    return query->data + (address - query->base);
}

uint64_t query_data(struct query *query, const void *data, size_t size)
{
    uint64_t address = query_reserve(query, size);
    memcpy(query_read(query, address), data, size);
    return address;
}

static int append(struct query *query, struct op op)
{
    if (query->op_count == query->op_capacity)
        end_at_once("a query has more than %d operations", query->op_capacity);

    query->ops[query->op_count] = op;
    return query->op_count++;
}

int query_op(struct query *query, struct op op)
{
    op.flags |= OP_ANY_ERROR;
    return append(query, op);
}

int64_t query_result(const struct query *query, int op_index)
{
    return query->ops[op_index].result;
}

/* ---- the scratch mapping ---- */

struct scratch {
    struct process *process;
    uint64_t address;
    size_t size;
    uint64_t parked;            /* uint32_t[thread_count]: behind the interpreter */
    char *copy;                 /* of the mapping, here: fresh pages, of which most are never touched */
    struct query *queries;      /* one a thread */
};

static size_t whole_pages(size_t size) { return (size + PAGE - 1) & ~(PAGE - 1); }

static size_t head_size(const struct process *process)
{
    return PAGE + whole_pages((size_t)process->thread_count * sizeof(uint32_t));
}

static size_t leader_ops(const struct process *process)
{
    return whole_pages(LEADER_OPS + (size_t)process->fd_count * sizeof(struct op));
}

/* The address is 0 where it could not be mapped. */
static int map_scratches(struct scratch *scratches, int count, struct error *err)
{
    AUTO_FREE struct cave_call *calls = must_alloc((size_t)count * sizeof *calls);
    for (int i = 0; i < count; i++) {
        struct scratch *scratch = &scratches[i];
        struct process *process = scratch->process;
        if (write_cave(process, err) < 0)
            return -1;
        scratch->size = head_size(process) + LEADER_DATA + leader_ops(process) + (size_t)(process->thread_count - 1) * (THREAD_DATA + THREAD_OPS);
        calls[i] = (struct cave_call){ .process = process, .number = SYS_mmap,
                                       .args = { SCRATCH_PLACE, scratch->size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS,
                                                 (uint64_t)-1, 0 } };
    }
    int status = cave_calls(calls, count, err);
    for (int i = 0; i < count; i++) {
        if (calls[i].status < 0)
            continue;
        if (calls[i].result < 0 && calls[i].result > -4096) {
            errno = (int)-calls[i].result;
            status = fail_errno(err, "%s: cannot map %zu bytes of scratch memory in it", process_label(scratches[i].process), scratches[i].size);
            continue;
        }
        scratches[i].address = (uint64_t)calls[i].result;
        scratches[i].parked = scratches[i].address + PAGE;
    }
    return status;
}

static int unmap_scratches(struct scratch *scratches, int count, struct error *err)
{
    AUTO_FREE struct cave_call *calls = must_alloc((size_t)count * sizeof *calls);
    int mapped = 0;
    for (int i = 0; i < count; i++)
        if (scratches[i].address)
            calls[mapped++] = (struct cave_call){ .process = scratches[i].process, .number = SYS_munmap,
                                                  .args = { scratches[i].address, scratches[i].size } };
    return cave_calls(calls, mapped, err);
}

static bool left_something;

bool inject_left_something(void) { return left_something; }

int inject_unmap(struct process *process, uint64_t address, size_t size, struct error *err)
{
    struct scratch scratch = { .process = process, .address = address, .size = size };
    return write_cave(process, err) < 0 ? -1 : unmap_scratches(&scratch, 1, err);
}

static int open_copy(struct scratch *scratch, struct error *err)
{
    char *copy = mmap(NULL, scratch->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (copy == MAP_FAILED)
        return fail_errno(err, "%s: no room for a copy of its scratch memory", process_label(scratch->process));
    scratch->copy = copy;
    memcpy(copy, interp_start, (size_t)(interp_end - interp_start));
    return 0;
}

static char *copy_of(const struct scratch *scratch, uint64_t address) { return scratch->copy + (address - scratch->address); }

/* The used pieces of the mapping: the interpreter, then data and operations of each thread. Returns how many there are from `first` on. */
static int list_pieces(const struct scratch *scratch, int first, struct iovec *here, struct iovec *there, int most)
{
    int count = 0;
    for (int i = first; i <= 2 * scratch->process->thread_count && count < most; i++) {
        const struct query *query = i ? &scratch->queries[(i - 1) / 2] : NULL;
        uint64_t at = !query ? scratch->address : i % 2 ? query->base : query->ops_base;
        size_t size = !query ? (size_t)(interp_end - interp_start) : i % 2 ? query->data_used : (size_t)query->op_count * sizeof(struct op);
        here[count] = (struct iovec){ copy_of(scratch, at), size };
        there[count++] = (struct iovec){ (void *)at, size };
    }
    return count;
}

static int exchange(const struct scratch *scratch, bool fetch, struct error *err)
{
    enum { MOST = 128 };
    struct iovec here[MOST], there[MOST];
    for (int first = fetch, count; (count = list_pieces(scratch, first, here, there, MOST)) > 0; first += count) {
        size_t whole = 0;
        for (int i = 0; i < count; i++)
            whole += here[i].iov_len;
        pid_t pid = scratch->process->pid;
        ssize_t done = fetch ? process_vm_readv(pid, here, (unsigned long)count, there, (unsigned long)count, 0)
                             : process_vm_writev(pid, here, (unsigned long)count, there, (unsigned long)count, 0);
        if (done != (ssize_t)whole)
            return fail_errno(err, "%s: cannot %s its scratch memory", process_label(scratch->process), fetch ? "read" : "write");
    }
    return 0;
}

static int read_from(struct process *process, uint64_t address, void *data, size_t size, struct error *err)
{
    struct iovec to = { data, size }, from = { (void *)address, size };
    if (process_vm_readv(process->pid, &to, 1, &from, 1, 0) != (ssize_t)size)
        return fail_errno(err, "%s: cannot read its scratch memory", process_label(process));
    return 0;
}

static int build_query(struct scratch *scratch, int index, uint64_t at, struct error *err)
{
    struct process *process = scratch->process;
    struct query *query = &scratch->queries[index];
    size_t ops_size = index ? THREAD_OPS : leader_ops(process);
    query->thread = &process->threads[index];
    query->leader = index == 0;
    query->base = at;
    query->data_size = index ? THREAD_DATA : LEADER_DATA;
    query->data = copy_of(scratch, at);
    query->ops_base = at + query->data_size;
    query->op_capacity = (int)(ops_size / sizeof(struct op));
    query->ops = (struct op *)copy_of(scratch, query->ops_base);
    query_reserve(query, sizeof(struct op_fault));
    for (int i = 0; parts[i]; i++)
        if (parts[i]->ask && parts[i]->ask(query, &query->memo[i], err) < 0)
            return -1;
    struct resume_frame frame = resume_frame_of(query->thread);
    struct timespec sleep = { PARK_SECONDS, 0 };
    append(query, (struct op){ .number = OP_PARK,
                               .arg = { scratch->parked + (uint64_t)index * sizeof(uint32_t), query_data(query, &sleep, sizeof sleep) } });
    append(query, (struct op){ .number = OP_RESUME, .arg = { query_data(query, &frame, sizeof frame) } });
    return 0;
}

static int write_queries(struct scratch *scratch, struct error *err)
{
    struct process *process = scratch->process;
    scratch->queries = must_alloc((size_t)process->thread_count * sizeof *scratch->queries);
    if (open_copy(scratch, err) < 0)
        return -1;
    uint64_t at = scratch->address + head_size(process);
    for (int i = 0; i < process->thread_count; i++) {
        if (build_query(scratch, i, at, err) < 0)
            return -1;
        at = scratch->queries[i].ops_base + (i ? THREAD_OPS : leader_ops(process));
    }
    return exchange(scratch, false, err);
}

static int start_query(struct scratch *scratch, int index, struct error *err)
{
    struct query *query = &scratch->queries[index];
    struct thread *thread = query->thread;
    struct user_regs_struct regs = thread->regs;
    regs.orig_rax = (uint64_t)-1;
    regs.rip = scratch->address;
    regs.rdi = query->ops_base;
    regs.rsi = query->base;
    if (set_registers(thread->tid, &regs, err) == 0 && set_signal_mask(thread->tid, ALL_SIGNALS, err) == 0) {
        if (thread->seccomp_filters)
            shield_kill_if_asked("asking");
        if (ptrace(PTRACE_CONT, thread->tid, 0, 0) == 0)
            return 0;
        fail_errno(err, "cannot run a batch in thread %d", thread->tid);
    }
    give_back(thread, err);     /* it has not run: it stands where it stood */
    return -1;
}

/* The same for a batch: threads of a stopped program report their stop once more; others can only meet a SIGSTOP that came late. */
static void resume_stopped(struct process *process, const uint32_t *parked, bool all)
{
    for (int i = 0; i < process->thread_count; i++) {
        struct thread *thread = &process->threads[i];
        int status;
        if (parked[i] || (!all && !thread->stop_signal && !thread->stop_withheld))
            continue;
        if (waitpid(thread->tid, &status, __WALL | WNOHANG) > 0 && WIFSTOPPED(status)
            && (status >> 16 == PTRACE_EVENT_STOP || withholds_stop(status, &thread->stop_withheld)))
            ptrace(PTRACE_CONT, thread->tid, 0, 0);
    }
}

static int await_parked(struct scratch *scratch, struct error *err)
{
    int count = scratch->process->thread_count;
    AUTO_FREE uint32_t *parked = must_alloc((size_t)count * sizeof *parked);
    uint64_t deadline = monotonic_ns() + STOP_TIMEOUT_NS / 4;
    for (unsigned spins = 0;; spins++) {
        if (read_from(scratch->process, scratch->parked, parked, (size_t)count * sizeof *parked, err) < 0)
            return -1;
        int done = 0;
        for (int i = 0; i < count; i++)
            done += parked[i] != 0;
        if (done == count)
            return 0;
        resume_stopped(scratch->process, parked, spins > SPINS_BEFORE_A_CLOSER_LOOK);
        if (monotonic_ns() > deadline)
            return fail(err, "internal", "%s: the questions to it were not answered in time", process_label(scratch->process));
        if (spins > 100)
            usleep(20);
        else
            sched_yield();
    }
}

/* Stop the thread again and give it back what it had. */
static int take_back(struct thread *thread, struct error *err)
{
    int stop_signal;
    INSIST(ptrace(PTRACE_INTERRUPT, thread->tid, 0, 0));   /* else it has ended */
    if (wait_for_stop(thread->tid, &stop_signal, monotonic_ns() + STOP_TIMEOUT_NS) < 0)
        return fail(err, "gone", "thread %d ended while it was being copied", thread->tid);
    return give_back(thread, err);
}

static int collect_query(struct scratch *scratch, int index, struct error *err)
{
    struct query *query = &scratch->queries[index];
    for (int i = 0; parts[i]; i++)
        if (parts[i]->collect && parts[i]->collect(query, query->memo[i], err) < 0)
            return -1;
    return 0;
}

static void free_queries(struct scratch *scratch)
{
    for (int i = 0; scratch->queries && i < scratch->process->thread_count; i++) {
        struct query *query = &scratch->queries[i];
        for (int k = 0; k < MAX_PARTS; k++)
            free(query->memo[k]);
    }
    if (scratch->copy)
        munmap(scratch->copy, scratch->size);
    free(scratch->queries);
}

/* Start all, wait for all, take all back. A thread that was started is taken back whatever failed. */
static int run_queries(struct scratch *scratches, int count, struct error *err)
{
    int status = 0;
    AUTO_FREE int *started = must_alloc((size_t)(count + 1) * sizeof *started);
    for (int i = 0; i < count && status == 0; i++) {
        while (started[i] < scratches[i].process->thread_count && status == 0) {
            status = start_query(&scratches[i], started[i], err);
            started[i] += status == 0;
        }
    }
    for (int i = 0; i < count && status == 0; i++)
        status = await_parked(&scratches[i], err);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < started[i]; k++)
            status |= take_back(&scratches[i].process->threads[k], err);
    for (int i = 0; i < count && status == 0; i++) {
        status = exchange(&scratches[i], true, err);
        for (int k = 0; k < scratches[i].process->thread_count && status == 0; k++)
            status = collect_query(&scratches[i], k, err);
    }
    return status;
}

static int run_all(struct scratch *scratches, int count, struct error *err)
{
    int status = map_scratches(scratches, count, err);
    for (int i = 0; i < count && status == 0; i++)
        status = write_queries(&scratches[i], err);
    if (status == 0)
        status = run_queries(scratches, count, err);
    status |= unmap_scratches(scratches, count, err);
    for (int i = 0; i < count; i++)
        return_stops(scratches[i].process);
    left_something = status < 0;
    for (int i = 0; i < count; i++)
        free_queries(&scratches[i]);
    return status < 0 ? -1 : 0;
}

int inject_queries(struct world *world, struct error *err)
{
    struct scratch *scratches = must_alloc((size_t)world->process_count * sizeof *scratches);
    int count = 0;
    for (int i = 0; i < world->process_count; i++)
        if (!world->processes[i]->zombie)
            scratches[count++].process = world->processes[i];
    /* Without a tracer a seccomp filter of the source's would see our calls, and might kill on one. */
    shield_raise();
    int status = run_all(scratches, count, err);
    shield_lower();
    free(scratches);
    return status;
}
