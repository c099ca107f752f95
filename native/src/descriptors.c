#include "descriptors.h"
#include "doubt.h"
#include "files.h"
#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MISC_MAJOR 10
#define FUSE_MINOR 229

const char *description_label(const struct description *description)
{
    static char ring[4][192];
    static unsigned next;
    char *label = ring[next++ % 4];
    const char *name = description->kind ? description->kind->name : description->link;
    if (description->holder)
        snprintf(label, sizeof ring[0], "%s fd %d: %.80s", process_label(description->holder), description->holder_fd, name);
    else
        snprintf(label, sizeof ring[0], "a descriptor in a socket's queue: %.80s", name);
    return label;
}

static int by_number(const void *left, const void *right)
{
    return ((const struct fd_entry *)left)->fd - ((const struct fd_entry *)right)->fd;
}

int descriptors_list(struct process *process, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd", process->pid);
    DIR *directory = opendir(path);
    if (!directory)
        return fail_errno(err, "cannot list the descriptors of %s", process_label(process));
    int capacity = 0;
    char what[256];
    snprintf(what, sizeof what, "the descriptors of %s", process_label(process));
    struct dirent *entry;
    while ((entry = directory_next(directory, what, err))) {
        if (entry->d_name[0] == '.')
            continue;
        if (process->fd_count == MAX_DESCRIPTORS) {
            closedir(directory);
            return fail(err, "limit", "%s has more than %d descriptors open", process_label(process), MAX_DESCRIPTORS);
        }
        if (process->fd_count == capacity) {
            capacity = capacity ? capacity * 2 : 64;
            process->fds = must_grow(process->fds, (size_t)capacity * sizeof *process->fds);
        }
        process->fds[process->fd_count++] = (struct fd_entry){ .fd = atoi(entry->d_name) };
    }
    closedir(directory);
    if (err->code)
        return -1;
    if (process->fd_count)
        qsort(process->fds, (size_t)process->fd_count, sizeof *process->fds, by_number);
    return 0;
}

/* The files of /proc are asked for what the kernel knows by itself. Some 1 us a descriptor. */
int descriptors_refuse_servers(const struct process *process, struct error *err)
{
    char path[64];
    struct statx st;
    snprintf(path, sizeof path, "/proc/%d/fd", process->pid);
    AUTO_CLOSE int directory = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (int i = 0; i < process->fd_count; i++) {
        snprintf(path, sizeof path, "%d", process->fds[i].fd);
        if (statx(directory, path, AT_STATX_DONT_SYNC, STATX_TYPE, &st) == 0 && S_ISCHR(st.stx_mode) && st.stx_rdev_major == MISC_MAJOR
            && st.stx_rdev_minor == FUSE_MINOR)
            return fail(err, "unsupported", "%s serves a FUSE file system (fd %d); unmount it or end the program", process_label(process), process->fds[i].fd);
    }
    return 0;
}

/* ---- one node per open file description, ordered by inode and then by kcmp ---- */

static void *tree;

static int compare(const void *left, const void *right)
{
    const struct description *a = left, *b = right;
    if (a->st.st_dev != b->st.st_dev)
        return a->st.st_dev < b->st.st_dev ? -1 : 1;
    if (a->st.st_ino != b->st.st_ino)
        return a->st.st_ino < b->st.st_ino ? -1 : 1;
    if (a->local == b->local)
        return 0;
    long order = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, a->local, b->local);
    if (order < 0)              /* taken for two, what is unread in it would be there twice */
        doubt(ANSWERS(0), "cannot tell whether two descriptors are one open file");
    if (order == 0)
        return 0;
    return order == 1 ? -1 : 1;
}

static int inspect(struct description *description, struct error *err)
{
    char path[64];
    if (fstat(description->local, &description->st) < 0)
        return fail_errno(err, "cannot look at a descriptor of the source");
    description->flags = fcntl(description->local, F_GETFL);
    if (description->flags < 0)
        return fail_errno(err, "cannot read the flags of a descriptor of the source");
    bool socket = S_ISSOCK(description->st.st_mode) && !(description->flags & O_PATH);
    /* What the kernel would print for a socket is known, and asking costs 7 us: a workspace may have thousands. */
    snprintf(path, sizeof path, socket ? "socket:[%lu]" : "/proc/self/fd/%lu",
             socket ? (unsigned long)description->st.st_ino : (unsigned long)description->local);
    description->link = socket ? must_copy_string(path) : proc_link(err, "%s", path);
    if (!description->link)
        return -1;
    description->offset = socket || (description->flags & O_PATH) ? -1 : lseek(description->local, 0, SEEK_CUR);
    if (description->offset < 0 && !socket && !(description->flags & O_PATH))
        doubt(ANSWERS(ESPIPE, EINVAL, ENXIO, EOVERFLOW, EOPNOTSUPP), "cannot tell the position in %s", description->link);
    if (!(description->flags & O_PATH)) {
        struct { int type, pid; } owner = { 0, 0 };
        if (fcntl(description->local, F_GETOWN_EX, &owner) < 0)
            return fail_errno(err, "cannot tell the owner of %s", description->link);
        if (owner.pid > 0) {
            /* The answer is in our numbering: turn the host's pid into the workspace's later; only owners inside count. */
            description->owner_type = owner.type;
            description->owner_pid = owner.pid;
        }
        description->owner_signal = fcntl(description->local, F_GETSIG);
        if (description->owner_signal < 0)
            return fail_errno(err, "cannot tell the signal of %s", description->link);
    }
    return 0;
}

/* A group has its number as long as anybody is in it, its leader or not. */
static bool is_owner(const struct process *process, int type, int host)
{
    return type == F_OWNER_PGRP ? getpgid(process->group_leader) == host : process->group_leader == host;
}

static void owner_to_namespace(const struct world *world, struct description *description)
{
    int host = description->owner_pid;
    description->owner_pid = 0;
    for (int i = 0; host && i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        if (is_owner(process, description->owner_type, host)) {
            description->owner_pid = description->owner_type == F_OWNER_PGRP ? process->ns_group : process->ns_pid;
            return;
        }
        for (int k = 0; k < process->thread_count && description->owner_type == F_OWNER_TID; k++)
            if (process->threads[k].tid == host)
                description->owner_thread = &process->threads[k];
    }
}

static int classify(struct description *description, struct error *err)
{
    for (int i = 0; fd_kinds[i]; i++) {
        if (fd_kinds[i]->match(description)) {
            description->kind = fd_kinds[i];
            return 0;
        }
    }
    return fail(err, "unsupported", "%s cannot be forked; close it or end the program", description_label(description));
}

/* The description behind local_fd; takes the descriptor over. */
static struct description *find_or_add(struct world *world, int local_fd, struct process *holder, int fd, struct error *err)
{
    struct description key = { .local = local_fd };
    if (fstat(local_fd, &key.st) < 0) {
        fail_errno(err, "cannot look at a descriptor of the source");
        close(local_fd);
        return NULL;
    }
    struct description **found = tfind(&key, &tree, compare);
    if (found) {
        close(local_fd);
        if (!(*found)->holder) {
            (*found)->holder = holder;
            (*found)->holder_fd = fd;
        }
        return *found;
    }
    struct description *description = must_alloc(sizeof *description);
    description->local = local_fd;
    description->holder = holder;
    description->holder_fd = fd;
    if (inspect(description, err) < 0)
        return NULL;
    owner_to_namespace(world, description);
    tsearch(description, &tree, compare);
    description->index = world->description_count;
    world->descriptions = must_grow(world->descriptions, (size_t)(world->description_count + 1) * sizeof *world->descriptions);
    world->descriptions[world->description_count++] = description;
    if (classify(description, err) < 0)
        return NULL;
    return description;
}

struct description *capture_adopt_descriptor(struct world *world, int local_fd, struct error *err)
{
    return find_or_add(world, local_fd, NULL, -1, err);
}

/* What is open at once in livefork and, while it is rebuilt, in a branch: both under the host's hard limit. */
static int open_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max < MAX_DESCRIPTORS ? (int)limit.rlim_max : MAX_DESCRIPTORS;
}

static int too_many(struct error *err)
{
    return fail(err, "limit", "the workspace has more files open than the host's limit of %d descriptors lets a fork hold; raise LimitNOFILE of the "
                "engine's service", open_limit());
}

int descriptors_check_room(const struct world *world, struct error *err)
{
    int aux = world->openings ? world->openings->aux_count : 0;
    return world->slot_base + world->description_count + aux > open_limit() ? too_many(err) : 0;
}

int descriptors_describe(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        for (int k = 0; k < process->fd_count; k++) {
            struct fd_entry *entry = &process->fds[k];
            int local = (int)syscall(SYS_pidfd_getfd, process->pidfd, entry->fd, 0);
            if (local < 0)
                return errno == EMFILE ? too_many(err)
                                       : fail_errno(err, "%s: cannot duplicate its descriptor %d", process_label(process), entry->fd);
            entry->description = find_or_add(world, local, process, entry->fd, err);
            if (!entry->description)
                return -1;
            if (entry->fd >= world->slot_base)
                world->slot_base = entry->fd + 1;
        }
    }
    return 0;
}

int descriptors_capture(struct world *world, struct error *err)
{
    for (int i = 0; i < world->description_count; i++) {    /* the count may grow */
        struct description *description = world->descriptions[i];
        if (description->kind->capture && description->kind->capture(world, description, err) < 0)
            return -1;
    }
    for (int i = 0; fd_kinds[i]; i++)
        if (fd_kinds[i]->link && fd_kinds[i]->link(world, err) < 0)
            return -1;
    return 0;
}
