/*
 * epoll sets. The kernel knows an entry by (file, number it was added under): the number may since have been closed or given to another file,
 * so each target is put under its old number for the moment of EPOLL_CTL_ADD. An entry that is ready when the branch starts is reported once
 * more even if it is edge-triggered and was reported in the source before: a lost wake-up would be worse than a spare one.
 */
#include "../descriptors.h"
#include "kinds.h"
#include "../doubt.h"
#include "../plan.h"
#include "../proc.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FDINFO_LIMIT (16u << 20)

struct epoll_entry {
    int number;
    uint32_t events;
    uint64_t data;
    unsigned long inode;
    struct description *target;
};

/* EPIOCGPARAMS and EPIOCSPARAMS, which older headers lack. */
struct busy_poll {
    uint32_t microseconds;
    uint16_t budget;
    uint8_t prefer, pad;
};
#define GET_BUSY_POLL _IOR(0x8a, 2, struct busy_poll)
#define SET_BUSY_POLL _IOW(0x8a, 1, struct busy_poll)

struct epoll_set {
    struct busy_poll busy_poll;
    struct epoll_entry *entries;
    int count;
};

static bool match(const struct description *description)
{
    return strcmp(description->link, "anon_inode:[eventpoll]") == 0;
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    struct epoll_set *data = description->data = must_alloc(sizeof *data);
    if (ioctl(description->local, GET_BUSY_POLL, &data->busy_poll) < 0) {   /* before Linux 6.9 */
        doubt(ANSWERS(ENOTTY, EINVAL, EOPNOTSUPP), "%s: cannot tell how it polls", description_label(description));
        data->busy_poll = (struct busy_poll){ 0 };
    }
    AUTO_FREE char *text = proc_read(err, FDINFO_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
    if (!text)
        return -1;
    for (char *line = strstr(text, "tfd:"); line; line = strstr(line + 1, "tfd:")) {
        struct epoll_entry entry = { 0 };
        unsigned long long user;
        long long position;
        if (sscanf(line, "tfd: %d events: %x data: %llx pos:%lld ino:%lx", &entry.number, &entry.events, &user, &position, &entry.inode) != 5
            || entry.number < 0 || entry.number >= INT_MAX)
            return fail(err, "internal", "%s: an entry of it cannot be read: %.60s", description_label(description), line);
        entry.data = user;
        data->entries = must_grow(data->entries, (size_t)(data->count + 1) * sizeof entry);
        data->entries[data->count++] = entry;
        if (entry.number >= world->slot_base)
            world->slot_base = entry.number + 1;    /* it will be used as a number in the branch */
    }
    return 0;
}

/* kcmp walks through the set each time: entries looked at so far, and how many a fork may (about 2 s). */
static long compared;
#define MAX_COMPARED 200000000l

/* Is `candidate` the file of the nth entry under this number? */
static bool is_target(const struct description *epoll, const struct epoll_entry *entry, int nth, const struct description *candidate)
{
    if (candidate->st.st_ino != entry->inode)
        return false;
    if (S_ISSOCK(candidate->st.st_mode))
        return true;            /* a socket has one file; the other kinds can have several for an inode */
    compared += ((const struct epoll_set *)epoll->data)->count;
    struct kcmp_epoll_slot slot = { .efd = (uint32_t)epoll->local, .tfd = (uint32_t)entry->number, .toff = (uint32_t)nth };
    long order = syscall(SYS_kcmp, getpid(), getpid(), KCMP_EPOLL_TFD, candidate->local, &slot);
    if (order < 0)
        doubt(ANSWERS(ENOENT), "cannot tell which file an entry of an epoll set stands for");
    return order == 0;
}

static int by_number(const void *key, const void *entry)
{
    return *(const int *)key - ((const struct fd_entry *)entry)->fd;
}

static struct description *in_table(const struct process *process, int number)
{
    const struct fd_entry *found = process && process->fd_count
        ? bsearch(&number, process->fds, (size_t)process->fd_count, sizeof *process->fds, by_number) : NULL;
    return found ? found->description : NULL;
}

/* Nearly always the file is still under that number with the process that holds the set. */
static struct description *find_target(const struct world *world, const struct description *epoll, const struct epoll_entry *entry, int nth)
{
    struct description *likely = in_table(epoll->holder, entry->number);
    if (likely && is_target(epoll, entry, nth, likely))
        return likely;
    for (int i = 0; i < world->description_count && compared < MAX_COMPARED; i++)
        if (is_target(epoll, entry, nth, world->descriptions[i]))
            return world->descriptions[i];
    return NULL;
}

/* The kernel (and /proc) lists a set by the address of the file, so entries that share a number can lie anywhere in it. */
static int link_entries(const struct world *world, const struct description *epoll, struct error *err)
{
    struct epoll_set *data = epoll->data;
    int highest = 0;
    for (int k = 0; k < data->count; k++)
        if (data->entries[k].number > highest)
            highest = data->entries[k].number;
    AUTO_FREE int *seen = must_alloc(((size_t)highest + 1) * sizeof *seen);
    for (int k = 0; k < data->count; k++) {
        struct epoll_entry *entry = &data->entries[k];
        entry->target = find_target(world, epoll, entry, seen[entry->number]++);
        if (!entry->target && compared >= MAX_COMPARED)
            return fail(err, "limit", "%s watches too many files whose numbers have changed since; end the program", description_label(epoll));
        if (!entry->target)
            return fail(err, "unsupported", "%s watches a file under number %d that no process has open any more; it cannot be watched again "
                        "in a branch", description_label(epoll), entry->number);
        if (pidfd_is_of_thread(entry->target))
            return fail(err, "unsupported", "%s watches a single thread by its pidfd (number %d), which cannot be forked; take it out of the set",
                        description_label(epoll), entry->number);
    }
    return 0;
}

static int link_targets(struct world *world, struct error *err)
{
    for (int i = 0; i < world->description_count; i++)
        if (match(world->descriptions[i]) && link_entries(world, world->descriptions[i], err) < 0)
            return -1;
    return 0;
}

/*
 * A signalfd wakes a set by the signals of the process that put it in. The kernel does not tell who that was; nearly always it is the one that holds
 * both.
 */
static bool is_of_holder(const struct description *epoll, const struct epoll_entry *entry)
{
    return entry->target->kind == &kind_signalfd && in_table(epoll->holder, entry->number) == entry->target;
}

static void emit_of_holder(struct plan *plan, const struct description *epoll, const struct epoll_entry *entry)
{
    struct epoll_event event = { .events = entry->events, .data.u64 = entry->data };
    EMIT(plan_own(plan, epoll->holder), description_label(epoll), SYS_epoll_ctl, (uint64_t)epoll->holder_fd, EPOLL_CTL_ADD,
         (uint64_t)entry->number, plan_data(plan, &event, sizeof event));
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    const struct epoll_set *data = description->data;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    if (stage == STAGE_MAKE) {
        EMIT(batch, what, SYS_epoll_create1, 0);
        emit_to_slot(batch, description, what);
        if (data->busy_poll.microseconds || data->busy_poll.budget || data->busy_poll.prefer)
            EMIT_FLAGS(batch, what, TOLERATING(LACKING_RIGHTS), SYS_ioctl, SLOT(plan, description), SET_BUSY_POLL,
                       plan_data(plan, &data->busy_poll, sizeof data->busy_poll));
    }
    if (stage != STAGE_WATCH)
        return 0;
    for (int i = 0; i < data->count; i++) {
        const struct epoll_entry *entry = &data->entries[i];
        if (is_of_holder(description, entry)) {
            emit_of_holder(plan, description, entry);
            continue;
        }
        struct epoll_event event = { .events = entry->events, .data.u64 = entry->data };
        EMIT(batch, what, SYS_dup3, SLOT(plan, entry->target), (uint64_t)entry->number, O_CLOEXEC);
        EMIT(batch, what, SYS_epoll_ctl, SLOT(plan, description), EPOLL_CTL_ADD, (uint64_t)entry->number, plan_data(plan, &event, sizeof event));
        EMIT(batch, what, SYS_close, (uint64_t)entry->number);
    }
    return 0;
}

const struct fd_kind kind_epoll = { .name = "epoll set", .match = match, .capture = capture, .link = link_targets, .emit = emit };
