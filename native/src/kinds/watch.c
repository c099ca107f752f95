/* handle.c turns a file handle into a path. */
#include "watch.h"
#include "handle.h"
#include "../descriptors.h"
#include "../doubt.h"
#include "../files.h"
#include "../proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define FDINFO_LIMIT (64u << 20)

/*
 * File systems without handles (devpts, parts of /proc), directories that the overlay keeps under another name: look at what processes stand in
 * or have open. What is found nowhere has lost its last name: such a watch has nothing to report any more but its own end.
 */
static char *path_of_known(const struct world *world, uint64_t inode)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        if (process->cwd && files_path_is(world, process->cwd, inode))
            return must_copy_string(process->cwd);
    }
    for (int i = 0; i < world->description_count; i++) {
        const struct description *description = world->descriptions[i];
        if (description->st.st_ino == inode && description->link[0] == '/' && files_path_is(world, description->link, inode))
            return must_copy_string(description->link);
    }
    return NULL;
}

/* A file that has lost its name, or that lies in a mount namespace of its own, is watched through a descriptor that somebody has open. */
static const struct description *held_descriptor(const struct world *world, uint64_t inode, unsigned device)
{
    for (int i = 0; i < world->description_count; i++) {
        const struct description *description = world->descriptions[i];
        const struct stat *st = &description->st;
        bool there = st->st_ino == inode && description->link[0] == '/' && (S_ISREG(st->st_mode) || S_ISDIR(st->st_mode));
        if (there && (st->st_nlink == 0 || (major(st->st_dev) << 20 | minor(st->st_dev)) == device))
            return description;
    }
    return NULL;
}

int watch_place_find(const struct world *world, const char *line, uint64_t inode, unsigned device, const char *label, struct watch_place *place,
                     struct error *err)
{
    struct handle handle = { 0 };
    bool hidden = false;
    if (handle_parse(line, &handle) == 0)
        place->path = handle_is_of_overlay(&handle) ? handle_path_on_overlay(world, inode, &handle, &hidden, err)
                                                    : handle_path_on_mount(world, inode, device, &handle, err);
    if (err->code)
        return -1;
    if (!place->path && handle.size && !handle_is_of_overlay(&handle))
        place->path = handle_path_in_namespaces(world, inode, device, &handle, &place->mounts);
    if (!place->path)
        place->path = path_of_known(world, inode);
    if (!place->path)
        place->held = held_descriptor(world, inode, device);
    if (!watch_place_exists(place) && hidden)
        return fail(err, "unsupported", "%s watches inode %lu, whose path cannot be found (its directory was renamed); end the program or let it "
                    "watch again", label, (unsigned long)inode);
    return 0;
}

bool watch_place_exists(const struct watch_place *place)
{
    return place->path || place->held;
}

uint64_t watch_place_path(struct plan *plan, const struct watch_place *place)
{
    char held[64];
    if (!place->held)
        return plan_string(plan, place->path);
    snprintf(held, sizeof held, "/proc/self/fd/%lu", (unsigned long)SLOT(plan, place->held));
    return plan_string(plan, held);
}

char *watch_fdinfo(const struct description *description, struct error *err)
{
    return proc_read(err, FDINFO_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
}

int watch_each(const struct world *world, const struct description *description, char *fdinfo, const char *start, watch_take *take, struct error *err)
{
    for (char *line = strstr(fdinfo, start), *next; line; line = next) {
        next = strstr(line + 1, start);
        if (next)
            next[-1] = 0;
        if (take(world, description, line, err) < 0)
            return -1;
    }
    return 0;
}

bool watch_unread(const struct description *description)
{
    int bytes = 0;
    if (ioctl(description->local, FIONREAD, &bytes) < 0)
        doubt(ANSWERS(0), "%s: cannot tell whether events are unread", description_label(description));
    return bytes > 0;
}

int watch_queue_limit(const char *kind)
{
    struct error err = { 0 };
    AUTO_FREE char *text = proc_read(&err, 64, NULL, "/proc/sys/fs/%s/max_queued_events", kind);
    doubt_error(&err);
    int limit = text ? atoi(text) : 0;
    return limit > 0 && limit <= WATCH_QUEUE_MOST ? limit : 0;
}

bool watch_holder_at_root(const struct description *description)
{
    const struct process *holder = description->holder;
    return holder && holder->root && strcmp(holder->root, "/") == 0;
}

void watch_emit_lost(struct batch *batch, const struct thread *thread, bool (*lost)(const struct description *description),
                     void (*emit)(struct batch *batch, const struct description *description))
{
    const struct process *process = thread->process;
    if (thread != &process->threads[0])
        return;
    for (int i = 0; i < process->fd_count; i++) {
        const struct description *description = process->fds[i].description;
        if (description->holder == process && description->holder_fd == process->fds[i].fd && lost(description))
            emit(batch, description);
    }
}
