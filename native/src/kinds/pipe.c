/*
 * Pipes and FIFOs. Every description of one pipe shares an inode; the pipe is made once, by the first of its descriptions, and the others
 * are opened through /proc/self/fd (pipes) or the path (FIFOs). An end that nobody inside held is dropped again, so that the
 * other one sees end of file or EPIPE. Content is copied with tee(2), which leaves the source's pipe as it was.
 */
#include "kinds.h"
#include "../descriptors.h"
#include "../files.h"
#include "../mounts.h"
#include "../plan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEFAULT_CAPACITY 65536
#define DEFAULT_MODE 0600
#define KERNEL_LARGEFILE 0100000     /* O_LARGEFILE, which libc calls 0 on 64-bit machines */

struct chunk {
    size_t size;
    char *data;
};

struct pipe_object {
    struct description *first;      /* makes the pipe, and the others of it too */
    int capacity;
    bool packets;                   /* O_DIRECT: each chunk is one write */
    bool nameless;                  /* a FIFO that its name does not lead to: removed, replaced, or hidden by a mount */
    struct chunk *chunks;
    int chunk_count;
};

static bool is_reader(const struct description *description)
{
    return (description->flags & O_ACCMODE) != O_WRONLY;
}

static bool same_pipe(const struct description *a, const struct description *b)
{
    return a->kind == b->kind && a->st.st_dev == b->st.st_dev && a->st.st_ino == b->st.st_ino;
}

static bool is_anonymous(const struct description *description)
{
    return strncmp(description->link, "pipe:[", 6) == 0;
}

static bool pipe_match(const struct description *description)
{
    return S_ISFIFO(description->st.st_mode) && !(description->flags & O_PATH);
}

/* ---- capture ---- */

/* A chunk for each read(2) of the copy: with packets a read returns exactly one. */
static int read_chunks(struct pipe_object *object, int copy, size_t limit, struct error *err)
{
    AUTO_FREE char *buffer = must_alloc(limit);
    ssize_t got;
    while ((got = read(copy, buffer, limit)) > 0) {
        object->chunks = must_grow(object->chunks, (size_t)(object->chunk_count + 1) * sizeof *object->chunks);
        struct chunk *chunk = &object->chunks[object->chunk_count++];
        chunk->size = (size_t)got;
        chunk->data = must_alloc(chunk->size);
        memcpy(chunk->data, buffer, chunk->size);
    }
    if (got < 0 && errno != EAGAIN)
        return fail_errno(err, "cannot read the copy of a pipe's content");
    return 0;
}

static int copy_content(struct pipe_object *object, const struct description *reader, struct error *err)
{
    int available = 0;
    if (ioctl(reader->local, FIONREAD, &available) < 0)
        return fail_errno(err, "%s: cannot ask how much it holds", description_label(reader));
    if (available <= 0)
        return 0;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
        return fail_errno(err, "cannot make a pipe to copy another");
    AUTO_CLOSE int out = ends[0];
    AUTO_CLOSE int in = ends[1];
    /* As many buffers as the original has; what one tee cannot take no second one would (it starts from the head again). */
    if (object->capacity > DEFAULT_CAPACITY && fcntl(in, F_SETPIPE_SZ, object->capacity) < 0 && available > DEFAULT_CAPACITY)
        return fail_errno(err, "%s holds %d bytes: cannot make a pipe as large", description_label(reader), available);
    ssize_t copied = tee(reader->local, in, (size_t)available, SPLICE_F_NONBLOCK);
    if (copied != available)
        return fail(err, "limit", "%s: only %zd of its %d bytes could be copied; let its reader drain it", description_label(reader), copied,
                    available);
    return read_chunks(object, out, (size_t)(object->packets ? DEFAULT_CAPACITY : available), err);
}

static bool has_no_name(const struct world *world, const struct description *fifo)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fifo->local);
    return !files_path_leads_to(world, mounts_of_file(world, fifo->local), fifo->link, fifo->st.st_ino, path);
}

static int pipe_link(struct world *world, struct error *err)
{
    for (int i = 0; i < world->description_count; i++) {
        struct description *first = world->descriptions[i];
        if (first->kind != &kind_pipe || first->data)
            continue;
        struct pipe_object *object = must_alloc(sizeof *object);
        object->first = first;
        object->capacity = fcntl(first->local, F_GETPIPE_SZ);
        if (object->capacity < 0)
            return fail_errno(err, "%s: cannot tell its capacity", description_label(first));
        object->nameless = !is_anonymous(first) && has_no_name(world, first);
        const struct description *reader = NULL;
        for (int k = i; k < world->description_count; k++) {
            struct description *other = world->descriptions[k];
            if (!same_pipe(first, other))
                continue;
            other->data = object;
            if (is_reader(other))
                reader = other;
            if (other->flags & O_DIRECT)
                object->packets = true;
        }
        /* Bytes that nobody inside can read any more are of no use. */
        if (reader && copy_content(object, reader, err) < 0)
            return -1;
    }
    return 0;
}

/* ---- emit ---- */

static void emit_content(struct batch *batch, const struct pipe_object *object, uint32_t load_flag, uint64_t write_end, const char *what)
{
    for (int i = 0; i < object->chunk_count; i++) {
        const struct chunk *chunk = &object->chunks[i];
        uint64_t data = plan_data(batch->plan, chunk->data, chunk->size);
        EMIT_FLAGS(batch, what, load_flag, SYS_write, write_end, data, chunk->size);
        EMIT_FLAGS(batch, what, OP_LOAD(0), OP_EXPECT, emit_result_cell(batch), chunk->size);
    }
}

static void emit_owner_and_mode(struct batch *batch, const struct description *description, const char *what)
{
    const struct stat *st = &description->st;
    uint64_t slot = SLOT(batch->plan, description);
    /* A user who opens /dev/stdout passes the permission check of the pipe's inode. */
    if (st->st_uid || st->st_gid)
        EMIT(batch, what, SYS_fchown, slot, st->st_uid, st->st_gid);
    if ((st->st_mode & 07777) != DEFAULT_MODE)
        EMIT(batch, what, SYS_fchmod, slot, st->st_mode & 07777);
}

/* O_NONBLOCK: opening an end whose peer is not open yet must not wait (F_SETFL puts the real flags afterwards). */
static void emit_open(struct batch *batch, const struct description *description, uint64_t path, const char *what)
{
    uint64_t mode = (uint64_t)(description->flags & O_ACCMODE);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, path, mode | O_NONBLOCK | O_CLOEXEC);
    emit_to_slot(batch, description, what);
    EMIT(batch, what, SYS_fcntl, SLOT(batch->plan, description), F_SETFL, (uint64_t)(description->flags & (O_NONBLOCK | O_DIRECT)));
}

/* Descriptions of the pipe or FIFO, but for those two. */
static void emit_openings(struct batch *batch, const struct pipe_object *object, uint64_t path, const struct description *const made[2], const char *what)
{
    const struct world *world = batch->plan->world;
    for (int i = 0; i < world->description_count; i++) {
        const struct description *description = world->descriptions[i];
        if (description->data == object && description->kind == &kind_pipe && description != made[0] && description != made[1])
            emit_open(batch, description, path, what);
    }
}

/* The end as pipe(2) made it, if somebody has it: one that was opened through /proc has O_LARGEFILE, which no flag of an opening keeps away. */
static const struct description *original_end(const struct world *world, const struct pipe_object *object, int mode)
{
    for (int i = 0; i < world->description_count; i++) {
        const struct description *description = world->descriptions[i];
        if (description->data == object && description->kind == &kind_pipe && (description->flags & (O_ACCMODE | KERNEL_LARGEFILE)) == mode)
            return description;
    }
    return NULL;
}

static void emit_anonymous(struct batch *batch, const struct pipe_object *object, const char *what)
{
    struct plan *plan = batch->plan;
    const struct description *first = object->first;
    const struct description *const originals[2] = { original_end(plan->world, object, O_RDONLY), original_end(plan->world, object, O_WRONLY) };
    uint64_t ends = plan_reserve(plan, 2 * sizeof(uint32_t));
    uint64_t read_end = ends, write_end = ends + sizeof(uint32_t);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", (int)SLOT(plan, first));
    uint64_t path_address = plan_string(plan, path);

    /* O_NONBLOCK until the end: a refill that does not fit must fail, not wait for ever. */
    EMIT(batch, what, SYS_pipe2, ends, (uint64_t)(O_NONBLOCK | (object->packets ? O_DIRECT : 0)));
    /* The first description has an end at first whatever it is: only its slot has a number that is known now. */
    EMIT_FLAGS(batch, what, OP_LOAD32(0), SYS_dup3, is_reader(first) ? read_end : write_end, SLOT(plan, first), 0);
    for (int i = 0; i < 2; i++)
        if (originals[i] && originals[i] != first)
            EMIT_FLAGS(batch, what, OP_LOAD32(0), SYS_dup3, i ? write_end : read_end, SLOT(plan, originals[i]), 0);
    if (object->capacity > 0 && object->capacity != DEFAULT_CAPACITY)
        EMIT(batch, what, SYS_fcntl, SLOT(plan, first), F_SETPIPE_SZ, (uint64_t)object->capacity);
    emit_openings(batch, object, path_address, originals, what);
    emit_content(batch, object, OP_LOAD32(0), write_end, what);
    emit_owner_and_mode(batch, first, what);
    EMIT_FLAGS(batch, what, OP_LOAD32(0), SYS_close, read_end);
    EMIT_FLAGS(batch, what, OP_LOAD32(0), SYS_close, write_end);
    for (int i = 0; i < 2; i++)
        if (originals[i])
            EMIT(batch, what, SYS_fcntl, SLOT(plan, originals[i]), F_SETFL, (uint64_t)(originals[i]->flags & (O_NONBLOCK | O_DIRECT)));
}

/* A FIFO without a name comes back under one of our own for as long as it takes to open it. */
static uint64_t emit_nameless_fifo(struct batch *batch, const struct description *first, const char *what)
{
    char name[64];
    snprintf(name, sizeof name, "/tmp/.tclone-fifo-%lu", (unsigned long)first->st.st_ino);
    uint64_t path = plan_string(batch->plan, name);
    EMIT(batch, what, SYS_mknodat, (uint64_t)AT_FDCWD, path, S_IFIFO | DEFAULT_MODE, 0);
    return path;
}

static void emit_named(struct batch *batch, const struct pipe_object *object, const char *what)
{
    struct plan *plan = batch->plan;
    const struct description *first = object->first;
    uint64_t path = object->nameless ? emit_nameless_fifo(batch, first, what) : plan_string(plan, first->link);
    const struct mount_world *mounts = object->nameless ? NULL : mounts_of_file(plan->world, first->local);
    mounts_enter(batch, mounts);
    /* Open for both first: then no other opening finds its peer missing. */
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
    uint64_t both = emit_result_cell(batch);
    if (object->capacity > 0 && object->capacity != DEFAULT_CAPACITY)
        EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_fcntl, both, F_SETPIPE_SZ, (uint64_t)object->capacity);
    emit_openings(batch, object, path, (const struct description *const[2]){ NULL, NULL }, what);
    mounts_leave(batch, mounts);
    emit_content(batch, object, OP_LOAD(0), both, what);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, both);
    if (object->nameless) {
        emit_owner_and_mode(batch, first, what);
        EMIT(batch, what, SYS_unlinkat, (uint64_t)AT_FDCWD, path, 0);
    }
}

static int pipe_emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    const struct pipe_object *object = description->data;
    struct batch *batch = &plan->common[STAGE_MAKE];
    const char *what = description_label(description);
    if (object->first == description) {
        if (is_anonymous(description))
            emit_anonymous(batch, object, what);
        else
            emit_named(batch, object, what);
    }
    /* Owners and signals of O_ASYNC; the plain flags are set already, the first description made the others. */
    if (description->owner_pid || description->owner_signal || (description->flags & O_ASYNC))
        emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_pipe = {
    .name = "pipe",
    .match = pipe_match,
    .link = pipe_link,
    .emit = pipe_emit,
};
