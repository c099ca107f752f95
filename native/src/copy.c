/*
 * Copying. Chunks of 512 KiB stay in the second-level cache between the read and the writes, so N branches cost one read. Pages that a source
 * process shares with a relative (fork) are read through /proc/PID/mem: process_vm_readv pins pages, which makes the kernel un-share them in
 * the source (measured: 256 MiB of new memory in a child after one read of its parent).
 */
#include "copy.h"
#include "memory.h"
#include "shared.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHUNK (512ul << 10)
#define PIECES 256              /* runs gathered into a chunk */
#define JOB_BYTES (4ul << 20)
#define PAGE 4096ul
#define EXCLUSIVE (1ull << 56)  /* pagemap: mapped by this process alone */
#define MAX_THREADS 4
#define WORTH_HELP (1ul << 20)  /* less is copied before a helper has started and made itself a buffer: 0.3 ms */

struct job {
    int process;                /* index, or -1 for a shared object */
    int object;
    int first, last;            /* pieces */
};

struct copier {
    struct world *world;
    const struct compiled *compiled;
    struct branch *branches;
    int branch_count;
    struct page_run **pieces;   /* per process, runs cut to at most CHUNK */
    int *piece_count;
    struct job *jobs;
    int job_count, next_job;
    int *jobs_left;             /* per process */
    uint64_t planned;           /* bytes of all jobs; of an object's, which nobody knows, as many as make a whole job */
    int64_t bytes;
    pthread_mutex_t lock;       /* guards errors */
    struct error err;           /* of the source */
};

/* ---- work list ---- */

static void cut_runs(struct copier *copier, int index)
{
    const struct memory_map *map = copier->world->processes[index]->map;
    int count = 0;
    for (int i = 0; i < map->run_count; i++)
        count += (int)((map->runs[i].end - map->runs[i].start + CHUNK - 1) / CHUNK);
    struct page_run *pieces = must_alloc((size_t)(count + 1) * sizeof *pieces);
    count = 0;
    for (int i = 0; i < map->run_count; i++) {
        const struct page_run *run = &map->runs[i];
        for (uint64_t at = run->start; at < run->end; at += CHUNK)
            pieces[count++] = (struct page_run){ at, at + CHUNK < run->end ? at + CHUNK : run->end, run->vma };
    }
    copier->pieces[index] = pieces;
    copier->piece_count[index] = count;
}

static void add_job(struct copier *copier, struct job job, uint64_t bytes)
{
    copier->planned += bytes;
    if ((copier->job_count & (copier->job_count - 1)) == 0)
        copier->jobs = must_grow(copier->jobs, (size_t)(copier->job_count ? copier->job_count * 2 : 16) * sizeof *copier->jobs);
    copier->jobs[copier->job_count++] = job;
    if (job.process >= 0)
        copier->jobs_left[job.process]++;
}

static void plan_process(struct copier *copier, int index)
{
    cut_runs(copier, index);
    uint64_t bytes = 0;
    int first = 0;
    for (int i = 0; i < copier->piece_count[index]; i++) {
        bytes += copier->pieces[index][i].end - copier->pieces[index][i].start;
        if (bytes >= JOB_BYTES || i + 1 == copier->piece_count[index]) {
            add_job(copier, (struct job){ .process = index, .first = first, .last = i + 1 }, bytes);
            first = i + 1;
            bytes = 0;
        }
    }
}

static void plan_jobs(struct copier *copier)
{
    struct world *world = copier->world;
    for (int i = 0; world->shared && i < world->shared->count; i++)
        if (!shared_filled_early(world->shared->list[i]))
            add_job(copier, (struct job){ .process = -1, .object = i }, JOB_BYTES);
    for (int i = 0; i < world->process_count; i++)
        if (!world->processes[i]->zombie)
            plan_process(copier, i);
}

/* ---- copying ---- */

/* The first error of the source (&copier->err) or of a branch stands. */
static void record_error(struct copier *copier, struct error *of, const struct error *err)
{
    pthread_mutex_lock(&copier->lock);
    if (!of->code)
        *of = *err;
    pthread_mutex_unlock(&copier->lock);
}

static bool all_exclusive(const struct copier *copier, int process, const struct page_run *piece)
{
    uint64_t entries[CHUNK / PAGE];
    size_t count = (piece->end - piece->start) / PAGE;
    ssize_t wanted = (ssize_t)(count * sizeof *entries);
    if (pread(copier->world->processes[process]->pagemap, entries, (size_t)wanted, (off_t)(piece->start / PAGE * sizeof *entries)) != wanted)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!(entries[i] & EXCLUSIVE))
            return false;
    return true;
}

static int read_all(int fd, char *buffer, size_t length, uint64_t address)
{
    while (length) {
        ssize_t got = pread(fd, buffer, length, (off_t)address);
        if (got == 0)
            errno = ESRCH;      /* /proc/PID/mem of a process that has ended */
        if (got <= 0)
            return -1;
        buffer += got;
        length -= (size_t)got;
        address += (uint64_t)got;
    }
    return 0;
}

static int write_all(int fd, const char *buffer, size_t length, uint64_t address)
{
    while (length) {
        ssize_t put = pwrite(fd, buffer, length, (off_t)address);
        if (put == 0)
            errno = EOWNERDEAD;     /* /proc/PID/mem of a process that has ended */
        if (put <= 0)
            return -1;
        buffer += put;
        length -= (size_t)put;
        address += (uint64_t)put;
    }
    return 0;
}

/* Read pieces [first, last) into buffer, one behind the other. */
static int read_pieces(struct copier *copier, int index, int first, int last, char *buffer, struct error *err)
{
    struct process *process = copier->world->processes[index];
    struct iovec from[PIECES], to[PIECES];
    int count = 0;
    size_t at = 0, gathered = 0;
    for (int i = first; i < last; i++) {
        const struct page_run *piece = &copier->pieces[index][i];
        size_t length = piece->end - piece->start;
        if ((piece->vma->protection & PROT_READ) && all_exclusive(copier, index, piece)) {
            from[count] = (struct iovec){ (void *)piece->start, length };
            to[count++] = (struct iovec){ buffer + at, length };
            gathered += length;
        } else if (read_all(process->mem, buffer + at, length, piece->start) < 0) {
            return fail_errno(err, "%s: cannot read its memory at %lx", process_label(process), (unsigned long)piece->start);
        }
        at += length;
    }
    if (count && process_vm_readv(process->pid, to, (unsigned long)count, from, (unsigned long)count, 0) != (ssize_t)gathered)
        return fail_errno(err, "%s: cannot read its memory", process_label(process));
    return 0;
}

/* Say why memory of a branch could not be filled: its processes are killed by nobody but its memory limit or the engine. */
static int cannot_fill(const struct branch *branch, const struct process *process, uint64_t address, struct error *err)
{
    if (errno == ESRCH || errno == EOWNERDEAD)
        return fail(err, "killed", "%s: the process for %s was killed while its memory was filled", branch->id, process_label(process));
    if (errno == EFAULT)
        errno = ENOMEM;         /* a page could not be had: the memory limit of the branch */
    return fail_errno(err, "%s: cannot fill the memory of %s at %lx", branch->id, process_label(process), (unsigned long)address);
}

static int overwrite(const struct branch *branch, int index, const char *buffer, size_t length, uint64_t address)
{
    struct iovec from = { (void *)buffer, length }, to = { (void *)address, length };
    return process_vm_writev(branch->pids[index], &from, 1, &to, 1, 0) == (ssize_t)length ? 0 : -1;
}

/* A page can be there already, full of zeroes: whoever reads /proc/PID/cmdline (ps) makes the kernel look at the new process's stack. */
static int place_pages(const struct branch *branch, int index, const char *buffer, size_t length, uint64_t address)
{
    while (length) {
        struct uffdio_copy copy = { .dst = address, .src = (uint64_t)buffer, .len = length, .mode = UFFDIO_COPY_MODE_DONTWAKE };
        if (ioctl(branch->userfaultfds[index], UFFDIO_COPY, &copy) == 0)
            return 0;
        size_t done = errno == EAGAIN && copy.copy > 0 ? (size_t)copy.copy : 0;
        if (errno == EEXIST && overwrite(branch, index, buffer, PAGE, address) == 0)
            done = PAGE;
        else if (errno != EAGAIN)
            return -1;
        buffer += done;
        address += done;
        length -= done;
    }
    return 0;
}

/* Read-only areas can be written through /proc/PID/mem only, which ignores the protection. */
static int write_pieces(struct copier *copier, struct branch *branch, int index, int first, int last, const char *buffer, struct error *err)
{
    const struct process *process = copier->world->processes[index];
    struct iovec from[PIECES], to[PIECES];
    int count = 0;
    size_t at = 0, gathered = 0;
    for (int i = first; i < last; i++) {
        const struct page_run *piece = &copier->pieces[index][i];
        size_t length = piece->end - piece->start;
        if (piece->vma->by_userfaultfd) {
            if (place_pages(branch, index, buffer + at, length, piece->start) < 0)
                return cannot_fill(branch, process, piece->start, err);
        } else if (memory_filling_protection(piece->vma) & PROT_WRITE) {
            from[count] = (struct iovec){ (void *)(buffer + at), length };
            to[count++] = (struct iovec){ (void *)piece->start, length };
            gathered += length;
        } else if (write_all(branch->memory[index], buffer + at, length, piece->start) < 0) {
            return cannot_fill(branch, process, piece->start, err);
        }
        at += length;
    }
    if (count && process_vm_writev(branch->pids[index], from, (unsigned long)count, to, (unsigned long)count, 0) != (ssize_t)gathered)
        return cannot_fill(branch, process, (uint64_t)to[0].iov_base, err);
    return 0;
}

static void copy_pieces(struct copier *copier, int index, int first, int last, char *buffer)
{
    struct error err = { 0 };
    if (read_pieces(copier, index, first, last, buffer, &err) < 0) {
        record_error(copier, &copier->err, &err);
        return;
    }
    for (int i = 0; i < copier->branch_count; i++) {
        struct branch *branch = &copier->branches[i];
        err.code = NULL;
        if (!branch->err.code && write_pieces(copier, branch, index, first, last, buffer, &err) < 0)
            record_error(copier, &branch->err, &err);
    }
}

static void run_process_job(struct copier *copier, const struct job *job, char *buffer)
{
    int first = job->first;
    size_t bytes = 0;
    int64_t total = 0;
    for (int i = job->first; i <= job->last; i++) {
        const struct page_run *piece = i < job->last ? &copier->pieces[job->process][i] : NULL;
        size_t length = piece ? piece->end - piece->start : 0;
        if (!piece || bytes + length > CHUNK || i - first == PIECES) {
            if (i > first)
                copy_pieces(copier, job->process, first, i, buffer);
            first = i;
            bytes = 0;
        }
        bytes += length;
        total += (int64_t)length;
    }
    __atomic_add_fetch(&copier->bytes, total, __ATOMIC_SEQ_CST);
    if (__atomic_sub_fetch(&copier->jobs_left[job->process], 1, __ATOMIC_SEQ_CST) == 0)
        for (int i = 0; i < copier->branch_count; i++)
            if (!copier->branches[i].err.code)
                rebuild_open_gate(copier->compiled, &copier->branches[i], job->process);
}

static void run_object_job(struct copier *copier, const struct job *job)
{
    for (int i = 0; i < copier->branch_count; i++) {
        struct branch *branch = &copier->branches[i];
        struct error err = { 0 };
        if (branch->err.code)
            continue;
        int64_t bytes = shared_fill(copier->world, branch, job->object, &err);
        if (bytes < 0)
            record_error(copier, &branch->err, &err);
        else if (i == 0)
            __atomic_add_fetch(&copier->bytes, bytes, __ATOMIC_SEQ_CST);
    }
}

static void *run_jobs(void *argument)
{
    struct copier *copier = argument;
    size_t size = copier->planned < CHUNK ? copier->planned + PAGE : CHUNK;
    char *buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (buffer == MAP_FAILED) {
        struct error err = { 0 };
        fail_errno(&err, "cannot map a copy buffer");
        record_error(copier, &copier->err, &err);
        return NULL;
    }
    for (;;) {
        int job = __atomic_fetch_add(&copier->next_job, 1, __ATOMIC_SEQ_CST);
        if (job >= copier->job_count || copier->err.code)
            break;
        if (copier->jobs[job].process >= 0)
            run_process_job(copier, &copier->jobs[job], buffer);
        else
            run_object_job(copier, &copier->jobs[job]);
    }
    munmap(buffer, size);
    return NULL;
}

static void open_empty_gates(struct copier *copier)
{
    for (int i = 0; i < copier->world->process_count; i++)
        for (int k = 0; k < copier->branch_count && !copier->world->processes[i]->zombie && copier->jobs_left[i] == 0; k++)
            if (!copier->branches[k].err.code)
                rebuild_open_gate(copier->compiled, &copier->branches[k], i);
}

int64_t copy_memory(struct world *world, const struct compiled *compiled, struct branch *branches, int branch_count, struct error *err)
{
    struct copier copier = { .world = world, .compiled = compiled, .branches = branches, .branch_count = branch_count,
                             .lock = PTHREAD_MUTEX_INITIALIZER };
    size_t processes = (size_t)world->process_count;
    copier.pieces = must_alloc(processes * sizeof *copier.pieces);
    copier.piece_count = must_alloc(processes * sizeof *copier.piece_count);
    copier.jobs_left = must_alloc(processes * sizeof *copier.jobs_left);
    plan_jobs(&copier);
    open_empty_gates(&copier);

    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int helpers = (int)(cores < MAX_THREADS ? cores : MAX_THREADS) - 1;
    if (helpers > copier.job_count - 1)
        helpers = copier.job_count > 0 ? copier.job_count - 1 : 0;
    if (copier.planned < WORTH_HELP)
        helpers = 0;
    pthread_t threads[MAX_THREADS];
    int started = 0;
    while (started < helpers && pthread_create(&threads[started], NULL, run_jobs, &copier) == 0)
        started++;
    run_jobs(&copier);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    for (size_t i = 0; i < processes; i++) {
        close_fd(&world->processes[i]->pagemap);
        free(copier.pieces[i]);
    }
    free(copier.jobs);
    if (copier.err.code) {
        *err = copier.err;
        return -1;
    }
    return copier.bytes;
}
