/*
 * inotify. Where a watched inode is, watch.c finds out. Whatever changes while the branch is made happens before
 * its watches exist. Events not read yet cannot be looked at without taking them, so in a branch IN_Q_OVERFLOW stands for them: the kernel's own
 * word for "events were lost, look again".
 */
#include "watch.h"
#include "../mounts.h"
#include "../descriptors.h"
#include "../parts/parts.h"
#include "../plan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/syscall.h>

#define MAX_WATCH 100000
#define DRAIN_BYTES (64u << 10)

struct watch {
    int number;
    uint32_t mask;
    struct watch_place place;
};

static bool any_unread;

struct inotify_set {
    struct watch *watches;
    int count;
    bool unread;                /* events wait to be read */
};

static bool match(const struct description *description)
{
    return strcmp(description->link, "anon_inode:inotify") == 0;
}

/* ---- capture ---- */

static int by_wd(const void *left, const void *right)
{
    return ((const struct watch *)left)->number - ((const struct watch *)right)->number;
}

static int take_watch(const struct world *world, const struct description *description, const char *line, struct error *err)
{
    struct inotify_set *set = description->data;
    struct watch watch = { 0 };
    unsigned long inode;
    unsigned device;
    if (sscanf(line, "inotify wd:%x ino:%lx sdev:%x mask:%x", (unsigned *)&watch.number, &inode, &device, &watch.mask) != 4)
        return fail(err, "internal", "%s: a watch of it cannot be read: %.80s", description_label(description), line);
    if (watch.number > MAX_WATCH)
        return fail(err, "limit", "%s has handed out %d watch numbers, more than %d; restart the program that uses it",
                    description_label(description), watch.number, MAX_WATCH);
    if (watch_place_find(world, line, inode, device, description_label(description), &watch.place, err) < 0)
        return -1;
    set->watches = must_grow(set->watches, (size_t)(set->count + 1) * sizeof watch);
    set->watches[set->count++] = watch;
    return 0;
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct inotify_set *set = description->data = must_alloc(sizeof *set);
    set->unread = watch_unread(description);
    any_unread |= set->unread;
    AUTO_FREE char *text = watch_fdinfo(description, err);
    if (!text || watch_each(world, description, text, "inotify wd:", take_watch, err) < 0)
        return -1;
    if (set->count)
        qsort(set->watches, (size_t)set->count, sizeof *set->watches, by_wd);
    return 0;
}

/* ---- emit ---- */

/* Numbers are handed out one after the other, so a gap is crossed by watches that are taken and dropped at once. */
static int emit_watch(struct batch *batch, uint64_t slot, const struct watch *watch, int next, const char *what)
{
    uint64_t path = watch_place_path(batch->plan, &watch->place);
    uint32_t itself = watch->place.held ? 0 : IN_DONT_FOLLOW;
    mounts_enter(batch, watch->place.mounts);
    for (; next < watch->number; next++) {
        EMIT(batch, what, SYS_inotify_add_watch, slot, path, IN_DELETE_SELF | itself);
        EMIT(batch, what, SYS_inotify_rm_watch, slot, (uint64_t)next);
    }
    EMIT(batch, what, SYS_inotify_add_watch, slot, path, watch->mask | itself);
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), OP_EXPECT, cell, (uint64_t)watch->number);
    mounts_leave(batch, watch->place.mounts);
    return watch->number + 1;
}

/* Read what so many events without names take. */
static void emit_drain(struct batch *batch, uint64_t slot, int events, const char *what)
{
    uint64_t room = events ? plan_reserve(batch->plan, DRAIN_BYTES) : 0;
    const int at_once = (int)(DRAIN_BYTES / sizeof(struct inotify_event));
    for (; events > 0; events -= at_once)
        EMIT_FLAGS(batch, what, TOLERATING(FULL), SYS_read, slot, room, (uint64_t)(events < at_once ? events : at_once) * sizeof(struct inotify_event));
}

/*
 * Fill the queue with reads and writes of a device, by turns since an event equal to the last one is not queued; one too many, and IN_Q_OVERFLOW comes
 * behind them. Then they are read away. 16384 system calls take 10 to 20 ms, so that comes after the source's pause.
 */
static void emit_overflow(struct batch *batch, uint64_t slot, const char *what)
{
    struct plan *plan = batch->plan;
    int limit = watch_queue_limit("inotify");
    if (!limit)
        return;
    uint64_t zero = plan_string(plan, "/dev/zero"), byte = plan_reserve(plan, 1);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, zero, O_RDWR | O_CLOEXEC);
    uint64_t device = emit_result_cell(batch);
    EMIT(batch, what, SYS_inotify_add_watch, slot, zero, IN_ACCESS | IN_MODIFY | IN_MASK_CREATE);
    uint64_t watch = emit_result_cell(batch);
    for (int i = 0; i <= limit; i++)
        EMIT_FLAGS(batch, what, OP_LOAD(0), i % 2 ? SYS_pread64 : SYS_pwrite64, device, byte, 1);
    EMIT_FLAGS(batch, what, OP_LOAD(1), SYS_inotify_rm_watch, slot, watch);     /* its IN_IGNORED is lost in the overflow */
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, device);
    emit_drain(batch, slot, limit, what);
}

/* By a process that has changed its root the device cannot be opened. */
static bool lost_by_holder(const struct description *description)
{
    return match(description) && ((const struct inotify_set *)description->data)->unread && watch_holder_at_root(description);
}

static void emit_overflow_by_holder(struct batch *batch, const struct description *description)
{
    emit_overflow(batch, (uint64_t)description->holder_fd, description_label(description));
}

static int overflow_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    if (any_unread)
        watch_emit_lost(batch, thread, lost_by_holder, emit_overflow_by_holder);
    return 0;
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    const struct inotify_set *set = description->data;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    uint64_t slot = SLOT(plan, description);
    if (stage == STAGE_MAKE) {
        EMIT(batch, what, SYS_inotify_init1, IN_NONBLOCK);
        emit_to_slot(batch, description, what);
    }
    if (stage != STAGE_WATCH)
        return 0;
    int next = 1, dropped = 0;
    for (int i = 0; i < set->count; i++) {
        if (!watch_place_exists(&set->watches[i].place))
            continue;
        int before = next;
        next = emit_watch(batch, slot, &set->watches[i], next, what);
        dropped += next - before - 1;
    }
    emit_drain(batch, slot, dropped, what);     /* each dropped watch left an IN_IGNORED event */
    if (set->unread && !lost_by_holder(description))
        emit_overflow(batch, slot, what);
    if (!(description->flags & O_NONBLOCK))
        EMIT(batch, what, SYS_fcntl, slot, F_SETFL, 0);
    emit_status_flags(batch, description, what);
    return 0;
}

const struct part part_inotify_overflow = { .name = "lost inotify events", .emit = overflow_emit };

const struct fd_kind kind_inotify = { .name = "inotify", .match = match, .capture = capture, .emit = emit };
