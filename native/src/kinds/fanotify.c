/*
 * fanotify groups, as anybody may make them: they report files by handles (FAN_REPORT_FID and its like) and watch single files and directories. Events that
 * were not read yet cannot be looked at, so FAN_Q_OVERFLOW stands for them in a branch, where the group reports names; it takes more
 * different events than a queue holds to bring that about, and only names differ without end.
 */
#include "kinds.h"
#include "watch.h"
#include "../descriptors.h"
#include "../mounts.h"
#include "../parts/parts.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/syscall.h>

#define LINK "anon_inode:[fanotify]"
#define SCRATCH_DIRECTORY "/dev/shm/.tclone-fanotify"
/* What an event of the scratch directory takes: itself, the directory's handle, a name; the file's own handle. FAN_Q_OVERFLOW does not fit behind one. */
#define EVENT_BYTES 64
#define TARGET_BYTES 32
#ifndef FAN_MARK_EVICTABLE
#define FAN_MARK_EVICTABLE 0x200
#define FAN_MARK_IGNORE 0x400
#endif
#ifndef FAN_REPORT_TARGET_FID
#define FAN_REPORT_TARGET_FID 0x1000
#endif
/* What may be asked for without CAP_SYS_ADMIN. */
#define OPEN_TO_ALL (FAN_CLOEXEC | FAN_NONBLOCK | FAN_REPORT_FID | FAN_REPORT_DIR_FID | FAN_REPORT_NAME | FAN_REPORT_TARGET_FID)

struct mark {
    uint32_t flags, mask, ignored;
    struct watch_place place;
};

struct fanotify_group {
    uint32_t flags, event_flags;
    struct mark *marks;
    int count;
    bool unread;
};

static bool any_unread;

static bool match(const struct description *description)
{
    return strcmp(description->link, LINK) == 0;
}

/* ---- capture ---- */

static int refuse(const struct description *description, const char *what, struct error *err)
{
    return fail(err, "unsupported", "%s is a fanotify group %s, which cannot be forked; end the program that watches the file system",
                description_label(description), what);
}

static int read_flags(const struct description *description, const char *text, struct fanotify_group *group, struct error *err)
{
    const char *line = strstr(text, "fanotify flags:");
    if (!line || sscanf(line, "fanotify flags:%x event-flags:%x", &group->flags, &group->event_flags) != 2)
        return fail(err, "internal", "%s: its flags cannot be read", description_label(description));
    if (group->flags & ~(uint32_t)OPEN_TO_ALL || !(group->flags & (FAN_REPORT_FID | FAN_REPORT_DIR_FID)))
        return refuse(description, "made by a privileged program", err);
    if (strstr(text, "fanotify mnt_id:") || strstr(text, "fanotify sdev:") || strstr(text, "fanotify mnt_ns:"))
        return refuse(description, "that watches a whole mount or file system", err);
    return 0;
}

static int check(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    struct fanotify_group group;
    AUTO_FREE char *text = watch_fdinfo(description, err);
    return text ? read_flags(description, text, &group, err) : -1;
}

static int take_mark(const struct world *world, const struct description *description, const char *line, struct error *err)
{
    struct fanotify_group *group = description->data;
    struct mark mark = { 0 };
    unsigned long inode;
    unsigned device;
    if (sscanf(line, "fanotify ino:%lx sdev:%x mflags:%x mask:%x ignored_mask:%x", &inode, &device, &mark.flags, &mark.mask, &mark.ignored) != 5)
        return fail(err, "internal", "%s: a mark of it cannot be read: %.80s", description_label(description), line);
    if (watch_place_find(world, line, inode, device, description_label(description), &mark.place, err) < 0)
        return -1;
    group->marks = must_grow(group->marks, (size_t)(group->count + 1) * sizeof mark);
    group->marks[group->count++] = mark;
    return 0;
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct fanotify_group *group = description->data = must_alloc(sizeof *group);
    group->unread = watch_unread(description);
    any_unread |= group->unread;
    AUTO_FREE char *text = watch_fdinfo(description, err);
    if (!text || read_flags(description, text, group, err) < 0)
        return -1;
    return watch_each(world, description, text, "fanotify ino:", take_mark, err);
}

/* ---- emit ---- */

/* Of a file that is no directory the kernel adds FAN_EVENT_ON_CHILD by itself, and refuses to be told so in some groups. */
static void emit_mask(struct batch *batch, uint64_t slot, uint64_t path, uint32_t flags, uint32_t mask, const char *what)
{
    if (mask & FAN_EVENT_ON_CHILD)
        EMIT_FLAGS(batch, what, TOLERATING(EVENT_ON_CHILD), SYS_fanotify_mark, slot, flags, mask, (uint64_t)AT_FDCWD, path);
    if (mask & ~(uint32_t)FAN_EVENT_ON_CHILD)
        EMIT(batch, what, SYS_fanotify_mark, slot, flags, mask & ~(uint32_t)FAN_EVENT_ON_CHILD, (uint64_t)AT_FDCWD, path);
}

static void emit_mark(struct batch *batch, uint64_t slot, const struct mark *mark, const char *what)
{
    uint64_t path = watch_place_path(batch->plan, &mark->place);
    uint32_t flags = FAN_MARK_ADD | (mark->flags & FAN_MARK_EVICTABLE) | (mark->place.held ? 0 : FAN_MARK_DONT_FOLLOW);
    uint32_t ignoring = mark->flags & FAN_MARK_IGNORE ? FAN_MARK_IGNORE : FAN_MARK_IGNORED_MASK;
    mounts_enter(batch, mark->place.mounts);
    emit_mask(batch, slot, path, flags, mark->mask, what);
    emit_mask(batch, slot, path, flags | ignoring | (mark->flags & FAN_MARK_IGNORED_SURV_MODIFY), mark->ignored, what);
    mounts_leave(batch, mark->place.mounts);
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    const struct fanotify_group *group = description->data;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    uint64_t slot = SLOT(plan, description);
    if (stage == STAGE_MAKE) {
        EMIT(batch, what, SYS_fanotify_init, group->flags, group->event_flags);
        emit_to_slot(batch, description, what);
    }
    if (stage != STAGE_WATCH)
        return 0;
    for (int i = group->count - 1; i >= 0; i--)     /* fdinfo lists the latest first */
        if (watch_place_exists(&group->marks[i].place))
            emit_mark(batch, slot, &group->marks[i], what);
    if (!(description->flags & O_NONBLOCK))
        EMIT(batch, what, SYS_fcntl, slot, F_SETFL, 0);
    emit_status_flags(batch, description, what);
    return 0;
}

/* ---- what was not read ---- */

/* All names are equally long, and so are the events. */
static uint64_t name_in_turn(struct plan *plan, int number)
{
    char name[16];
    snprintf(name, sizeof name, "%06d", number);
    return plan_string(plan, name);
}

/* A file gets one new name after the other, one too many; then the events that fit are read away one by one. Nothing may block if any of it fails. */
static void emit_overflow(struct batch *batch, const struct description *description)
{
    struct plan *plan = batch->plan;
    const char *what = description_label(description);
    uint64_t fd = (uint64_t)description->holder_fd, size = EVENT_BYTES;
    size += ((const struct fanotify_group *)description->data)->flags & FAN_REPORT_TARGET_FID ? TARGET_BYTES : 0;
    uint64_t room = plan_reserve(plan, size);
    char name[sizeof SCRATCH_DIRECTORY + 16];
    snprintf(name, sizeof name, SCRATCH_DIRECTORY "-%d", description->index);
    uint64_t directory = plan_string(plan, name);
    int limit = watch_queue_limit("fanotify");
    if (!limit)
        return;
    EMIT(batch, what, SYS_fcntl, fd, F_SETFL, (uint64_t)(description->flags | O_NONBLOCK));
    EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH), SYS_mkdir, directory, 0700);
    EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH), SYS_openat, (uint64_t)AT_FDCWD, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    uint64_t scratch = emit_result_cell(batch), before = name_in_turn(plan, 0);
    EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH) | OP_LOAD(0), SYS_mknodat, scratch, before, S_IFREG | 0600, 0);
    EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH), SYS_fanotify_mark, fd, FAN_MARK_ADD, FAN_MOVED_TO, (uint64_t)AT_FDCWD, directory);
    for (int i = 1; i <= limit + 1; i++) {
        uint64_t after = name_in_turn(plan, i);
        EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH) | OP_LOAD(0) | OP_LOAD(2), SYS_renameat, scratch, before, scratch, after);
        before = after;
    }
    EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH), SYS_fanotify_mark, fd, FAN_MARK_REMOVE, FAN_MOVED_TO, (uint64_t)AT_FDCWD, directory);
    EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH) | OP_LOAD(0), SYS_unlinkat, scratch, before, 0);
    EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH) | OP_LOAD(0), SYS_close, scratch);
    EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH), SYS_rmdir, directory);
    for (int i = 0; i < limit; i++)
        EMIT_FLAGS(batch, what, TOLERATING(NO_SCRATCH), SYS_read, fd, room, size);
    EMIT(batch, what, SYS_fcntl, fd, F_SETFL, (uint64_t)description->flags);
}

static bool can_overflow(const struct description *description)
{
    const struct fanotify_group *group = description->data;
    return match(description) && group->unread && (group->flags & FAN_REPORT_NAME) && watch_holder_at_root(description);
}

static int overflow_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    if (any_unread)
        watch_emit_lost(batch, thread, can_overflow, emit_overflow);
    return 0;
}

const struct part part_fanotify_overflow = { .name = "lost fanotify events", .emit = overflow_emit };

const struct fd_kind kind_fanotify = { .name = "fanotify", .match = match, .check = check, .capture = capture, .emit = emit };
