/*
 * Asynchronous I/O. A new context is made with a ring of the same size, and brought to where the source's is by requests that end at once: some that are
 * fetched again move both ends of the ring, the last ones stay in it as many as are unread, so that the kernel's own counts are right. Then their
 * events are overwritten with the source's, and the ring moves to its address, which renames the context.
 */
#include "../aio.h"
#include "../aio_reader.h"
#include "../freeze.h"
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#define RING_NAME "/[aio] (deleted)"
#define RING_MAGIC 0xa10a10a1   /* of a ring, and of the file system it lies on */
#define PAGE 4096ul
#define AT_ONCE 128             /* requests a system call */
#define MAX_NOTED 1024
#define PATIENCE_SECONDS 3
#define PATIENCE_NS (PATIENCE_SECONDS * 1000ull * 1000 * 1000)
#define PAUSE_US 200
#define BLIND_PATIENCE_US 50000 /* where the kernel does not tell how many are under way */

/* As the kernel lays it out (fs/aio.c): a program may fetch events from it by itself. */
struct ring {
    uint32_t id, places, head, tail, magic, compatible, incompatible, header_size;
    struct io_event events[];
};
_Static_assert(sizeof(struct ring) == sizeof(struct io_event), "a place is as large as the head");

struct context {
    const struct process *process;
    const struct vma *vma;
    struct ring *ring;          /* the whole of it, copied */
    bool alive;                 /* else only the memory, inherited from a parent or left by a context that was destroyed */
};

static struct context *contexts;
static int context_count;

/* ---- before the copy ---- */

static pid_t noted[MAX_NOTED];
static int noted_count;
static int reader = -1;

static bool is_noted(pid_t pid)
{
    for (int i = 0; i < noted_count; i++)
        if (noted[i] == pid)
            return true;
    return false;
}

/* Maps are read by several threads. */
static void note(pid_t pid)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (noted_count == 0)
        reader = aio_reader_open();
    if (!is_noted(pid) && noted_count < MAX_NOTED)
        noted[noted_count++] = pid;
    pthread_mutex_unlock(&lock);
}

bool aio_is_ring(const struct process *process, uint64_t start, uint64_t end, const char *name)
{
    char path[96];
    struct statfs fs;
    if (strcmp(name, RING_NAME) != 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/map_files/%lx-%lx", process->pid, (unsigned long)start, (unsigned long)end);
    AUTO_CLOSE int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0 || fstatfs(fd, &fs) < 0 || (uint32_t)fs.f_type != RING_MAGIC)
        return false;
    note(process->pid);
    return true;
}

/* How many requests of a process have not ended; -1 = nobody knows. */
static int64_t in_flight(pid_t pid)
{
    struct aio_record *records = NULL;
    ssize_t count = reader < 0 ? -1 : aio_reader_read(reader, pid, &records);
    int64_t sum = count < 0 ? -1 : 0;
    for (ssize_t i = 0; i < count; i++)
        sum += aio_record_in_flight(&records[i]);
    free(records);
    return sum;
}

int aio_check(const struct process *process, const struct vma *vma, struct error *err)
{
    struct aio_record *records = NULL;
    ssize_t count = reader < 0 ? -1 : aio_reader_read(reader, process->pid, &records);
    bool waits = false;
    for (ssize_t i = 0; i < count; i++)
        waits |= records[i].id == vma->start && records[i].cancellable;
    free(records);
    if (waits)
        return fail(err, "unsupported", "%s waits for a descriptor by an asynchronous I/O request (IOCB_CMD_POLL, context at %lx), which cannot be forked; let "
                    "it use epoll (databases have an option for it) or end it", process_label(process), (unsigned long)vma->start);
    return 0;
}

int aio_settle(const struct world *world, struct error *err)
{
    const uint64_t deadline = monotonic_ns() + PATIENCE_NS;
    for (int i = 0; noted_count && i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        int64_t left = 0;
        while (is_noted(process->pid) && (left = in_flight(process->pid)) > 0 && monotonic_ns() < deadline)
            usleep(PAUSE_US);
        if (left > 0)
            return fail(err, "unsupported", "%s has %ld asynchronous I/O requests that did not end in %d s; fork again when its device has done them, or end it",
                        process_label(process), (long)left, PATIENCE_SECONDS);
        if (left < 0)
            usleep(BLIND_PATIENCE_US);
    }
    return 0;
}

/* ---- capture ---- */

struct aio_memo {
    int *op;                    /* an index for each ring */
};

static int for_each_ring(const struct process *process, const struct vma *after, const struct vma **vma)
{
    const struct memory_map *map = process->map;
    for (const struct vma *at = after ? after + 1 : map->vmas; at < map->vmas + map->vma_count; at++)
        if (at->kind == VMA_AIO_RING) {
            *vma = at;
            return 1;
        }
    return 0;
}

/* Whether it is a context of this process: asking one for no events at all succeeds. */
static int aio_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    const struct process *process = query_thread(query)->process;
    int count = 0;
    if (!query_is_leader(query))
        return 0;
    int *ops = NULL;
    for (const struct vma *vma = NULL; for_each_ring(process, vma, &vma);) {
        struct timespec none = { 0 };
        ops = must_grow(ops, (size_t)(count + 1) * sizeof *ops);
        ops[count++] = ASK(query, SYS_io_getevents, vma->start, 0, 0, 0, query_data(query, &none, sizeof none));
    }
    *memo = ops;
    return 0;
}

static int read_ring(struct context *context, struct error *err)
{
    const struct vma *vma = context->vma;
    size_t size = vma->end - vma->start;
    context->ring = must_alloc(size);
    if (pread(context->process->mem, context->ring, size, (off_t)vma->start) != (ssize_t)size)
        return fail_errno(err, "%s: cannot read its asynchronous I/O ring at %lx", process_label(context->process), (unsigned long)vma->start);
    if (!context->alive)
        return 0;
    if (context->ring->magic != RING_MAGIC || context->ring->places != size / sizeof(struct io_event) - 1)
        return fail(err, "unsupported", "%s has changed its asynchronous I/O ring at %lx, or unmapped a part of it, so that it cannot be forked; end the "
                    "program", process_label(context->process), (unsigned long)vma->start);
    context->ring->head %= context->ring->places;
    context->ring->tail %= context->ring->places;
    return 0;
}

static int aio_collect(struct query *query, void *memo, struct error *err)
{
    const struct process *process = query_thread(query)->process;
    const int *op = memo;
    for (const struct vma *vma = NULL; memo && for_each_ring(process, vma, &vma); op++) {
        contexts = must_grow(contexts, (size_t)(context_count + 1) * sizeof *contexts);
        struct context *context = &contexts[context_count++];
        *context = (struct context){ .process = process, .vma = vma, .alive = query_result(query, *op) >= 0 };
        if (read_ring(context, err) < 0)
            return -1;
    }
    if (memo && in_flight(process->pid) > 0)
        return fail(err, "busy", "%s began to use asynchronous I/O just as it was forked; fork it again", process_label(process));
    return 0;
}

/* ---- emit ---- */

void aio_reserve(struct batch *batch, const struct vma *vma, const char *label)
{
    EMIT(batch, label, SYS_mmap, vma->start, vma->end - vma->start, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
         (uint64_t)-1, 0);
}

/* Write into the process's own memory from the arena. */
static void emit_write(struct batch *batch, uint64_t at, const void *data, size_t size, const char *label)
{
    struct plan *plan = batch->plan;
    struct iovec from = { (void *)plan_data(plan, data, size), size }, to = { (void *)at, size };
    EMIT(batch, label, SYS_getpid);
    uint64_t self = emit_result_cell(batch);
    EMIT_FLAGS(batch, label, OP_LOAD(0), SYS_process_vm_writev, self, plan_data(plan, &from, sizeof from), 1, plan_data(plan, &to, sizeof to), 1, 0);
}

/* What a batch needs to submit requests that end at once: nothing is read from an empty file. */
struct requests {
    uint64_t id;                /* cell of the context */
    uint64_t pointers, events;
};

static void emit_submit(struct batch *batch, const struct requests *requests, uint32_t count, bool fetch, const char *label)
{
    for (uint32_t left = count, now; left > 0; left -= now) {
        now = left < AT_ONCE ? left : AT_ONCE;
        EMIT_FLAGS(batch, label, OP_LOAD(0), SYS_io_submit, requests->id, now, requests->pointers);
        uint64_t submitted = emit_result_cell(batch);
        EMIT_FLAGS(batch, label, OP_LOAD(0), OP_EXPECT, submitted, now);
        if (fetch)
            EMIT_FLAGS(batch, label, OP_LOAD(0), SYS_io_getevents, requests->id, now, now, requests->events, 0);
    }
}

/* A file to read nothing from, the request that does it, and room for the events. */
static uint64_t emit_requests(struct batch *batch, struct requests *requests, const char *label)
{
    struct plan *plan = batch->plan;
    uint64_t request = plan_reserve(plan, sizeof(struct iocb)), pointers[AT_ONCE];
    *(struct iocb *)plan_local(plan, request) = (struct iocb){ .aio_lio_opcode = IOCB_CMD_PREAD };
    for (int i = 0; i < AT_ONCE; i++)
        pointers[i] = request;
    requests->pointers = plan_data(plan, pointers, sizeof pointers);
    requests->events = plan_reserve(plan, AT_ONCE * sizeof(struct io_event));
    EMIT(batch, label, SYS_memfd_create, plan_string(plan, "tclone-aio"), MFD_CLOEXEC);
    uint64_t file = request + offsetof(struct iocb, aio_fildes);
    batch->ops[batch->count - 1].cell = file;   /* its upper half falls on aio_buf, which nothing is read into */
    return file;
}

/* The smallest number of requests for which the kernel makes a ring of this size. */
static uint64_t requests_for(const struct vma *vma)
{
    uint64_t pages = (vma->end - vma->start) / PAGE, places = PAGE / sizeof(struct io_event);
    return pages < 2 ? 1 : ((pages - 1) * places - 3) / 2 + 1;
}

static void emit_context(struct batch *batch, const struct context *context, const char *label)
{
    struct plan *plan = batch->plan;
    const struct ring *ring = context->ring;
    const struct vma *vma = context->vma;
    size_t size = vma->end - vma->start;
    uint32_t unread = (ring->tail + ring->places - ring->head) % ring->places;
    struct requests requests = { .id = plan_reserve(plan, sizeof(uint64_t)) };
    EMIT(batch, label, SYS_io_setup, requests_for(vma), requests.id);
    uint64_t file = emit_requests(batch, &requests, label);
    emit_submit(batch, &requests, ring->head, true, label);
    emit_submit(batch, &requests, unread, false, label);
    EMIT_FLAGS(batch, label, OP_LOAD32(0), SYS_close, file);
    EMIT_FLAGS(batch, label, OP_LOAD(0), SYS_mremap, requests.id, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, vma->start);
    EMIT_FLAGS(batch, label, OP_LOAD32(0), OP_EXPECT, vma->start + offsetof(struct ring, places), ring->places);
    EMIT_FLAGS(batch, label, OP_LOAD32(0), OP_EXPECT, vma->start + offsetof(struct ring, head), ring->head);
    EMIT_FLAGS(batch, label, OP_LOAD32(0), OP_EXPECT, vma->start + offsetof(struct ring, tail), ring->tail);
    emit_write(batch, vma->start + sizeof *ring, ring->events, size - sizeof *ring, label);
}

static void emit_memory(struct batch *batch, const struct context *context, const char *label)
{
    size_t size = context->vma->end - context->vma->start;
    EMIT(batch, label, SYS_mmap, context->vma->start, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, (uint64_t)-1, 0);
    emit_write(batch, context->vma->start, context->ring, size, label);
}

/* Contexts are numbered as they are made, in the order of the source's numbers. */
static int by_number(const void *left, const void *right)
{
    const struct context *a = left, *b = right;
    if (a->process != b->process)
        return a->process->index - b->process->index;
    return (a->ring->id > b->ring->id) - (a->ring->id < b->ring->id);
}

void aio_emit(struct batch *batch, const struct process *process, const char *label)
{
    static bool sorted;
    char what[128];
    snprintf(what, sizeof what, "%.80s: asynchronous I/O", label);
    if (!sorted && context_count)
        qsort(contexts, (size_t)context_count, sizeof *contexts, by_number);
    sorted = true;
    for (int i = 0; i < context_count; i++) {
        const struct context *context = &contexts[i];
        if (context->process != process)
            continue;
        if (context->alive)
            emit_context(batch, context, what);
        else
            emit_memory(batch, context, what);
        if (context->vma->protection != (PROT_READ | PROT_WRITE))
            EMIT(batch, what, SYS_mprotect, context->vma->start, context->vma->end - context->vma->start, (uint64_t)context->vma->protection);
    }
}

const struct part part_aio = { .name = "asynchronous I/O", .ask = aio_ask, .collect = aio_collect };
