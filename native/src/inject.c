/*
 * Injection into the source. Each process gets one scratch mapping (the interpreter, then a region a thread); each thread runs one batch in
 * it. All threads of all processes run at once, so the cost is one ptrace round trip a thread, spread over the cores.
 *
 * The batch ends in int3. A forced SIGTRAP that is blocked or ignored would have its action reset by the kernel, so SIGTRAP alone is left
 * unblocked, and a process that ignores SIGTRAP gets its action set again.
 */
#include "inject.h"
#include "freeze.h"
#include "memory.h"
#include "query.h"

#include <elf.h>
#include <sched.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096ul
#define LEADER_DATA (96ul << 10)
#define LEADER_OPS (64ul << 10)
#define THREAD_DATA (12ul << 10)
#define THREAD_OPS (12ul << 10)
#define STOP_TIMEOUT_NS (10ull * 1000 * 1000 * 1000)
#define MAX_PARTS 48

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

/* ---- single steps ---- */

static uint64_t syscall_offset;

int find_vdso_syscall(struct error *err)
{
    const unsigned char *vdso = (const unsigned char *)getauxval(AT_SYSINFO_EHDR);
    if (!vdso)
        return fail(err, "internal", "this process has no vdso");
    for (uint64_t i = 0; i < 2 * PAGE - 1; i++) {
        if (vdso[i] == 0x0f && vdso[i + 1] == 0x05) {
            syscall_offset = i;
            return 0;
        }
    }
    return fail(err, "internal", "found no syscall instruction in the vdso");
}

int set_registers(pid_t tid, const struct user_regs_struct *regs, struct error *err)
{
    struct iovec io = { (void *)regs, sizeof *regs };
    if (ptrace(PTRACE_SETREGSET, tid, NT_PRSTATUS, &io) < 0)
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
    if (ptrace(PTRACE_SETSIGMASK, tid, sizeof mask, &mask) < 0)
        return fail_errno(err, "cannot set the signal mask of thread %d", tid);
    return 0;
}

static int wait_signal_stop(pid_t tid, int wanted, struct error *err)
{
    uint64_t deadline = monotonic_ns() + STOP_TIMEOUT_NS;
    for (unsigned spins = 0;; spins++) {
        int status;
        pid_t got = waitpid(tid, &status, __WALL | WNOHANG);
        if (got < 0 || (got > 0 && !WIFSTOPPED(status)))
            return fail(err, "gone", "thread %d ended while it was being copied", tid);
        if (got > 0 && WSTOPSIG(status) == wanted)
            return 0;
        if (got > 0)
            return fail(err, "internal", "thread %d stopped with %#x while a batch ran in it", tid, status);
        if (monotonic_ns() > deadline)
            return fail(err, "internal", "a batch in thread %d did not end", tid);
        if (spins > 200)
            usleep(20);
        else
            sched_yield();
    }
}

static void prepare_syscall(struct user_regs_struct *regs, uint64_t vdso, long number, const uint64_t args[6])
{
    regs->orig_rax = (uint64_t)-1;      /* no syscall restart from here */
    regs->rip = vdso + syscall_offset;
    regs->rax = (uint64_t)number;
    regs->rdi = args[0];
    regs->rsi = args[1];
    regs->rdx = args[2];
    regs->r10 = args[3];
    regs->r8 = args[4];
    regs->r9 = args[5];
}

int inject_syscall(pid_t tid, const struct user_regs_struct *base, uint64_t vdso, long number, const uint64_t args[6], long *result,
                   struct error *err)
{
    struct user_regs_struct regs = *base;
    prepare_syscall(&regs, vdso, number, args);
    if (set_registers(tid, &regs, err) < 0)
        return -1;
    for (int stop = 0; stop < 2; stop++) {      /* entry, exit */
        if (ptrace(PTRACE_SYSCALL, tid, 0, 0) < 0)
            return fail_errno(err, "cannot step thread %d", tid);
        if (wait_signal_stop(tid, SIGTRAP | 0x80, err) < 0)
            return -1;
    }
    if (get_registers(tid, &regs, err) < 0)
        return -1;
    *result = (long)regs.rax;
    return 0;
}

/* ---- building a query ---- */

struct thread *query_thread(struct query *query) { return query->thread; }
bool query_is_leader(const struct query *query) { return query->leader; }

uint64_t query_reserve(struct query *query, size_t size)
{
    size_t at = query->data_used;
    query->data_used += (size + 15) & ~(size_t)15;
    if (query->data_used > query->data_size) {
        fprintf(stderr, "tclone-livefork: a query needs more than %zu bytes\n", query->data_size);
        _Exit(1);
    }
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

int query_op(struct query *query, struct op op)
{
    if (query->op_count + 1 >= query->op_capacity) {
        fprintf(stderr, "tclone-livefork: a query has more than %d ops\n", query->op_capacity);
        _Exit(1);
    }
    op.flags |= OP_MAY_FAIL;
    query->ops[query->op_count] = op;
    return query->op_count++;
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
    struct query *queries;      /* one a thread */
};

static uint64_t process_vdso(const struct process *process)
{
    return process->map->vdso;
}

static size_t leader_data(const struct process *process) { return LEADER_DATA; (void)process; }
static size_t leader_ops(const struct process *process)
{
    size_t size = LEADER_OPS + (size_t)process->fd_count * sizeof(struct op);
    return (size + PAGE - 1) & ~(PAGE - 1);
}

static int map_scratch(struct scratch *scratch, struct error *err)
{
    struct process *process = scratch->process;
    struct thread *leader = &process->threads[0];
    scratch->size = PAGE + leader_data(process) + leader_ops(process) + (size_t)(process->thread_count - 1) * (THREAD_DATA + THREAD_OPS);
    uint64_t args[6] = { 0, scratch->size, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0 };
    long result;
    int status = inject_syscall(leader->tid, &leader->regs, process_vdso(process), SYS_mmap, args, &result, err);
    if (set_registers(leader->tid, &leader->regs, err) < 0 || status < 0)
        return -1;
    if (result < 0 && result > -4096) {
        errno = (int)-result;
        return fail_errno(err, "%s: cannot map %zu bytes of scratch memory in it", process_label(process), scratch->size);
    }
    scratch->address = (uint64_t)result;
    return 0;
}

static int unmap_scratch(struct scratch *scratch, bool restore_trap, struct error *err)
{
    struct process *process = scratch->process;
    struct thread *leader = &process->threads[0];
    long result = 0;
    int status = 0;
    if (restore_trap) {
        struct { uint64_t handler, flags, restorer, mask; } ignore = { 1, 0, 0, 0 };
        struct iovec from = { &ignore, sizeof ignore }, to = { (void *)(scratch->address + PAGE), sizeof ignore };
        process_vm_writev(process->pid, &from, 1, &to, 1, 0);
        uint64_t args[6] = { SIGTRAP, scratch->address + PAGE, 0, 8 };
        status |= inject_syscall(leader->tid, &leader->regs, process_vdso(process), SYS_rt_sigaction, args, &result, err);
    }
    uint64_t args[6] = { scratch->address, scratch->size };
    status |= inject_syscall(leader->tid, &leader->regs, process_vdso(process), SYS_munmap, args, &result, err);
    status |= set_registers(leader->tid, &leader->regs, err);
    return status;
}

static int ask_parts(struct query *query, struct error *err)
{
    for (int i = 0; parts[i]; i++)
        if (parts[i]->ask && parts[i]->ask(query, &query->memo[i], err) < 0)
            return -1;
    return 0;
}

static int write_to(struct process *process, uint64_t address, const void *data, size_t size, struct error *err)
{
    struct iovec from = { (void *)data, size }, to = { (void *)address, size };
    if (process_vm_writev(process->pid, &from, 1, &to, 1, 0) != (ssize_t)size)
        return fail_errno(err, "%s: cannot write its scratch memory", process_label(process));
    return 0;
}

static int read_from(struct process *process, uint64_t address, void *data, size_t size, struct error *err)
{
    struct iovec to = { data, size }, from = { (void *)address, size };
    if (process_vm_readv(process->pid, &to, 1, &from, 1, 0) != (ssize_t)size)
        return fail_errno(err, "%s: cannot read its scratch memory", process_label(process));
    return 0;
}

/* Lay out the regions, build each thread's batch and write it. */
static int write_queries(struct scratch *scratch, struct error *err)
{
    struct process *process = scratch->process;
    if (write_to(process, scratch->address, interp_start, (size_t)(interp_end - interp_start), err) < 0)
        return -1;
    scratch->queries = must_alloc((size_t)process->thread_count * sizeof *scratch->queries);
    uint64_t at = scratch->address + PAGE;
    for (int i = 0; i < process->thread_count; i++) {
        struct query *query = &scratch->queries[i];
        size_t ops_size = i ? THREAD_OPS : leader_ops(process);
        query->thread = &process->threads[i];
        query->leader = i == 0;
        query->base = at;
        query->data_size = i ? THREAD_DATA : leader_data(process);
        query->data = must_alloc(query->data_size);
        query->ops_base = at + query->data_size;
        query->op_capacity = (int)(ops_size / sizeof(struct op));
        query->ops = must_alloc(ops_size);
        at = query->ops_base + ops_size;
        query_reserve(query, sizeof(struct op_fault));
        if (ask_parts(query, err) < 0)
            return -1;
        query->ops[query->op_count] = (struct op){ .number = OP_STOP };
        if (write_to(process, query->base, query->data, query->data_used, err) < 0)
            return -1;
        if (write_to(process, query->ops_base, query->ops, (size_t)(query->op_count + 1) * sizeof(struct op), err) < 0)
            return -1;
    }
    return 0;
}

static int start_queries(struct scratch *scratch, struct error *err)
{
    for (int i = 0; i < scratch->process->thread_count; i++) {
        struct query *query = &scratch->queries[i];
        struct thread *thread = query->thread;
        struct user_regs_struct regs = thread->regs;
        regs.orig_rax = (uint64_t)-1;
        regs.rip = scratch->address;
        regs.rdi = query->ops_base;
        regs.rsi = query->base;
        if (set_registers(thread->tid, &regs, err) < 0)
            return -1;
        if (set_signal_mask(thread->tid, ~(1ull << (SIGTRAP - 1)), err) < 0)
            return -1;
        if (ptrace(PTRACE_CONT, thread->tid, 0, 0) < 0)
            return fail_errno(err, "cannot run a batch in thread %d", thread->tid);
    }
    return 0;
}

static int finish_query(struct scratch *scratch, int index, struct error *err)
{
    struct query *query = &scratch->queries[index];
    struct thread *thread = query->thread;
    int status = wait_signal_stop(thread->tid, SIGTRAP, err);
    status |= set_registers(thread->tid, &thread->regs, err);
    status |= set_signal_mask(thread->tid, thread->signal_mask, err);
    if (status < 0)
        return -1;
    if (read_from(scratch->process, query->base, query->data, query->data_used, err) < 0)
        return -1;
    return read_from(scratch->process, query->ops_base, query->ops, (size_t)query->op_count * sizeof(struct op), err);
}

static int collect_parts(struct query *query, struct error *err)
{
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
        free(query->data);
        free(query->ops);
    }
    free(scratch->queries);
}

/* After a failure every thread still gets its registers and mask back, so each step runs for all that the one before was begun for. */
static int run_all(struct scratch *scratches, int count, struct error *err)
{
    int mapped = 0, started = 0, status = 0;
    for (; mapped < count && status == 0; mapped++)
        status = map_scratch(&scratches[mapped], err);
    if (status < 0)
        mapped--;
    for (int i = 0; i < mapped && status == 0; i++)
        status = write_queries(&scratches[i], err);
    for (; started < mapped && status == 0; started++)
        status = start_queries(&scratches[started], err);
    for (int i = 0; i < started; i++)
        for (int k = 0; k < scratches[i].process->thread_count; k++)
            status |= finish_query(&scratches[i], k, err);
    for (int i = 0; i < mapped && status == 0; i++)
        for (int k = 0; k < scratches[i].process->thread_count && status == 0; k++)
            status = collect_parts(&scratches[i].queries[k], err);
    for (int i = 0; i < mapped; i++)
        status |= unmap_scratch(&scratches[i], scratches[i].process->ignores_trap, err);
    for (int i = 0; i < mapped; i++)
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
    int status = run_all(scratches, count, err);
    free(scratches);
    return status;
}
