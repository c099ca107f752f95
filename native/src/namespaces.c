/* Who lives in which namespace, and how the nested ones hang together. Where nothing is nested this costs seven readlinks a process. */
#include "namespaces.h"
#include "doubt.h"
#include "files.h"
#include "namespace_contents.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x00000080
#endif
#define MAX_NAMESPACES 4096
#define LINK_SIZE 64
#define MAX_GROUPS 65536       /* NGROUPS_MAX */

static const struct { const char *name; uint64_t flag; } kinds[NAMESPACE_KINDS] = {
    [NAMESPACE_USER] = { "user", CLONE_NEWUSER }, [NAMESPACE_PID] = { "pid", CLONE_NEWPID }, [NAMESPACE_MNT] = { "mnt", CLONE_NEWNS },
    [NAMESPACE_NET] = { "net", CLONE_NEWNET }, [NAMESPACE_IPC] = { "ipc", CLONE_NEWIPC }, [NAMESPACE_UTS] = { "uts", CLONE_NEWUTS },
    [NAMESPACE_TIME] = { "time", CLONE_NEWTIME },
};

uint64_t namespace_flag(enum namespace_kind kind)
{
    return kinds[kind].flag;
}

const char *namespace_name(enum namespace_kind kind)
{
    return kinds[kind].name;
}

int inner_pid(const struct process *process)
{
    return process->pids.count ? process->pids.at[process->pids.count - 1] : process->ns_pid;
}

int inner_tid(const struct thread *thread)
{
    return thread->tids.count ? thread->tids.at[thread->tids.count - 1] : thread->ns_tid;
}

bool namespace_contains(const struct namespace *ancestor, const struct namespace *inner)
{
    while (inner && inner != ancestor)
        inner = inner->parent;
    return inner != NULL;
}

bool namespace_id_inside(const struct namespace *user, bool group, uint32_t host, uint32_t *inside)
{
    *inside = host;
    if (!user || !user->nested)
        return true;
    const struct id_map *map = group ? &user->gids : &user->uids;
    for (int i = 0; i < map->count; i++) {
        if (host - map->ranges[i].host < map->ranges[i].count) {
            *inside = map->ranges[i].inside + (host - map->ranges[i].host);
            return true;
        }
    }
    return false;
}

/* ---- the list ---- */

static struct namespace *find(const struct world *world, enum namespace_kind kind, uint64_t inode)
{
    for (int i = 0; i < world->namespaces->count; i++)
        if (world->namespaces->list[i]->inode == inode && world->namespaces->list[i]->kind == kind)
            return world->namespaces->list[i];
    return NULL;
}

static struct namespace *add(struct world *world, enum namespace_kind kind, uint64_t inode)
{
    struct namespaces *all = world->namespaces;
    struct namespace *namespace = must_alloc(sizeof *namespace);
    *namespace = (struct namespace){ .index = all->count, .kind = kind, .inode = inode, .local = -1, .aux = -1,
                                     .nested = all->count >= NAMESPACE_KINDS };
    all->list = must_grow(all->list, (size_t)(all->count + 1) * sizeof *all->list);
    all->list[all->count++] = namespace;
    all->nested |= namespace->nested;
    return namespace;
}

/* "net:[4026531840]" -> the number; 0 if there is no such link, or no such process any more. */
static uint64_t inode_of_link(pid_t pid, const char *name)
{
    char path[64], link[LINK_SIZE];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", pid, name);
    ssize_t length = readlink(path, link, sizeof link - 1);
    if (length < 0)
        doubt(ANSWERS(ENOENT, ESRCH, EACCES), "cannot tell in which namespace (%s) pid %d of the host lives", name, pid);
    if (length <= 0)
        return 0;
    link[length] = 0;
    const char *number = strchr(link, '[');
    return number ? strtoull(number + 1, NULL, 10) : 0;
}

const char *namespace_of_thread_apart(const struct process *process, pid_t tid)
{
    static const enum namespace_kind apart[] = { NAMESPACE_NET, NAMESPACE_IPC, NAMESPACE_UTS, NAMESPACE_MNT };
    for (size_t i = 0; i < sizeof apart / sizeof *apart; i++) {
        const struct namespace *lives = process->namespaces[apart[i]];
        uint64_t inode = lives ? inode_of_link(tid, kinds[apart[i]].name) : 0;
        if (inode && inode != lives->inode)
            return kinds[apart[i]].name;
    }
    return NULL;
}

static int add_own(struct world *world, pid_t pid, struct error *err)
{
    uint64_t inodes[NAMESPACE_KINDS];
    for (int kind = 0; kind < NAMESPACE_KINDS; kind++) {
        inodes[kind] = inode_of_link(pid, kinds[kind].name);
        if (!inodes[kind] && kind != NAMESPACE_TIME)    /* not every kernel has those */
            return fail(err, "gone", "the source's first process has ended");
    }
    world->namespaces = must_alloc(sizeof *world->namespaces);      /* whole, or not at all: whoever looks at it counts on each kind */
    for (int kind = 0; kind < NAMESPACE_KINDS; kind++)
        add(world, kind, inodes[kind]);
    return 0;
}

/* A namespace not seen before, open at `fd` (taken over): its parents and owners come first. */
static struct namespace *add_open(struct world *world, enum namespace_kind kind, int fd, struct error *err);

static struct namespace *relative(struct world *world, int fd, unsigned long request, enum namespace_kind kind, struct error *err)
{
    int other = ioctl(fd, request);
    if (other < 0) {
        if (errno == EPERM)
            fail(err, "unsupported", "a %s namespace from outside the workspace is in use, which cannot be forked", kinds[kind].name);
        else
            fail_errno(err, "cannot tell how namespaces hang together");
        return NULL;
    }
    return add_open(world, kind, other, err);
}

static int read_relations(struct world *world, struct namespace *namespace, struct error *err)
{
    (void)world;
    if (namespace->kind == NAMESPACE_USER && ioctl(namespace->local, NS_GET_OWNER_UID, &namespace->owner_uid) < 0)
        return fail_errno(err, "cannot tell the owner of a user namespace");
    if (namespace->parent)
        namespace->level = namespace->parent->level + 1;
    return 0;
}

static struct namespace *add_open(struct world *world, enum namespace_kind kind, int fd, struct error *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0) {
        fail_errno(err, "cannot look at a namespace");
        close(fd);
        return NULL;
    }
    struct namespace *known = find(world, kind, st.st_ino);
    if (known) {
        if (known->nested && known->local < 0)
            known->local = fd;
        else
            close(fd);
        return known;
    }
    struct namespace *parent = NULL, *owner = NULL;
    if (world->namespaces->count >= MAX_NAMESPACES) {
        fail(err, "limit", "the workspace has more than %d namespaces", MAX_NAMESPACES);
        close(fd);
        return NULL;
    }
    bool tree = kind == NAMESPACE_USER || kind == NAMESPACE_PID;
    if ((tree && !(parent = relative(world, fd, NS_GET_PARENT, kind, err)))
        || !(owner = kind == NAMESPACE_USER ? parent : relative(world, fd, NS_GET_USERNS, NAMESPACE_USER, err))) {
        close(fd);
        return NULL;
    }
    struct namespace *namespace = add(world, kind, st.st_ino);
    namespace->local = fd;
    namespace->parent = parent;
    namespace->owner = owner;
    return read_relations(world, namespace, err) < 0 ? NULL : namespace;
}

struct namespace *namespace_of_descriptor(struct world *world, int fd, enum namespace_kind kind, struct error *err)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) {
        fail_errno(err, "cannot look at a namespace");
        return NULL;
    }
    return add_open(world, kind, copy, err);
}

static struct namespace *open_of(struct process *process, enum namespace_kind kind, const char *name, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", process->pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        fail_errno(err, "%s: cannot open its %s namespace", process_label(process), kinds[kind].name);
        return NULL;
    }
    return add_open(process->world, kind, fd, err);
}

static struct namespace *namespace_of(struct process *process, enum namespace_kind kind, const char *name, uint64_t inode, struct error *err)
{
    struct namespace *known = find(process->world, kind, inode);
    return known ? known : open_of(process, kind, name, err);
}

int namespaces_of_process(struct process *process, struct error *err)
{
    struct world *world = process->world;
    if (!world->namespaces && add_own(world, world->processes[0]->pid, err) < 0)
        return -1;
    for (int kind = 0; kind < NAMESPACE_KINDS; kind++) {
        uint64_t inode = inode_of_link(process->pid, kinds[kind].name);
        if (!inode && kind != NAMESPACE_TIME)
            return fail(err, "gone", "%s has ended", process_label(process));
        struct namespace *namespace = namespace_of(process, kind, kinds[kind].name, inode, err);
        if (!namespace)
            return -1;
        process->namespaces[kind] = namespace;
        namespace->member_count++;
        if (!namespace->member)
            namespace->member = process;
    }
    uint64_t time = inode_of_link(process->pid, "time_for_children");
    if (time && time != process->namespaces[NAMESPACE_TIME]->inode
        && !(process->children_time = namespace_of(process, NAMESPACE_TIME, "time_for_children", time, err)))
        return -1;
    uint64_t children = inode_of_link(process->pid, "pid_for_children");
    if (!children)              /* unshared, but nothing was forked since */
        return 0;
    process->children_namespace = namespace_of(process, NAMESPACE_PID, "pid_for_children", children, err);
    return process->children_namespace ? 0 : -1;
}

/* ---- numbers ---- */

bool namespaces_numbers(const struct world *world, const char *field, struct pid_numbers *numbers)
{
    numbers->count = 0;
    for (int level = 0; field && *field && *field != '\n'; level++) {
        char *end;
        long number = strtol(field, &end, 10);
        if (end == field)
            break;
        field = end;
        if (level < world->pid_level)
            continue;
        if (numbers->count == MAX_PID_LEVELS)
            return false;
        numbers->at[numbers->count++] = (int)number;
    }
    return numbers->count > 0;
}

static struct namespace *ancestor_at(struct namespace *namespace, int level)
{
    while (namespace && namespace->level > level)
        namespace = namespace->parent;
    return namespace;
}

/* The first process of a pid namespace has ended, and with it all others: nobody but its parent remembers. */
static struct namespace *add_dead(struct world *world, struct process *zombie)
{
    struct namespace *namespace = add(world, NAMESPACE_PID, (uint64_t)zombie->pid);
    namespace->parent = zombie->parent->namespaces[NAMESPACE_PID];
    namespace->owner = zombie->parent->namespaces[NAMESPACE_USER];
    namespace->level = namespace->parent->level + 1;
    namespace->member = zombie;
    namespace->member_count = 1;
    return namespace;
}

/* The namespaces of a zombie cannot be read any more: its numbers tell how deep it lived, and its parent where. */
static int place_zombie(struct process *process, struct error *err)
{
    const struct process *parent = process->parent;
    struct namespace *around = parent->namespaces[NAMESPACE_PID], *children = parent->children_namespace;
    int level = process->pids.count - 1;
    if (around && level > around->level) {
        bool there = children && children->level == level && (inner_pid(process) != 1 || children->member == NULL);
        if (!there && (inner_pid(process) != 1 || level != around->level + 1))
            return fail(err, "unsupported", "%s has ended in a pid namespace that its parent does not know any more; let its parent wait for it",
                        process_label(process));
        around = there ? children : add_dead(process->world, process);
    }
    process->namespaces[NAMESPACE_PID] = ancestor_at(around, level);
    return 0;
}

static void note_highest(struct namespace *namespace, const struct pid_numbers *numbers)
{
    for (int level = numbers->count - 1; level >= 0; level--) {
        struct namespace *at = ancestor_at(namespace, level);
        if (at && at->level == level && at->highest_pid < numbers->at[level])
            at->highest_pid = numbers->at[level];
    }
}

static void note_numbers(struct process *process)
{
    struct namespace *namespace = process->namespaces[NAMESPACE_PID];
    note_highest(namespace, &process->pids);
    note_highest(namespace, &process->groups);
    note_highest(namespace, &process->sessions);
}

static int read_thread_numbers(struct thread *thread, struct error *err)
{
    struct process *process = thread->process;
    AUTO_FREE char *text = proc_read(err, 1 << 20, NULL, "/proc/%d/task/%d/status", process->pid, thread->tid);
    if (!text)
        return -1;
    if (!namespaces_numbers(process->world, proc_field(text, "NSpid"), &thread->tids))
        return fail(err, "internal", "%s: the numbers of thread %d cannot be read", process_label(process), thread->tid);
    note_highest(process->namespaces[NAMESPACE_PID], &thread->tids);
    return 0;
}

static int read_list(const char *field, uint32_t *values, int most)
{
    int count = 0;
    while (field && *field && *field != '\n' && count < most) {
        char *end;
        unsigned long value = strtoul(field, &end, 10);
        if (end == field)
            break;
        values[count++] = (uint32_t)value;
        field = end;
    }
    return count;
}

static int read_host_ids(struct process *process, struct error *err)
{
    static uint32_t groups[MAX_GROUPS];
    AUTO_FREE char *text = proc_read(err, 1 << 20, NULL, "/proc/%d/status", process->pid);
    if (!text)
        return -1;
    struct host_ids *ids = process->host_ids = must_alloc(sizeof *ids);
    if (read_list(proc_field(text, "Uid"), ids->uid, 4) != 4 || read_list(proc_field(text, "Gid"), ids->gid, 4) != 4)
        return fail(err, "internal", "%s: its ids are not understood", process_label(process));
    ids->group_count = read_list(proc_field(text, "Groups"), groups, MAX_GROUPS);
    ids->groups = must_alloc((size_t)(ids->group_count + 1) * sizeof *groups);
    memcpy(ids->groups, groups, (size_t)ids->group_count * sizeof *groups);
    return 0;
}

/* ---- the whole ---- */

static int check_depth(const struct world *world, struct error *err)
{
    for (int i = 0; i < world->namespaces->count; i++) {
        const struct namespace *namespace = world->namespaces->list[i];
        if (namespace->level >= MAX_PID_LEVELS)
            return fail(err, "unsupported", "%s lives %d %s namespaces deep; at most %d can be forked",
                        process_label(namespace->member ? namespace->member : world->processes[0]), namespace->level, kinds[namespace->kind].name, MAX_PID_LEVELS - 1);
    }
    return 0;
}

/*
 * Only whoever makes a time namespace can live in another than its children, and only while it is alone in its memory. The others join it, which they
 * can once it is there.
 */
static int check_children_time(const struct process *process, struct error *err)
{
    const struct process *ancestor = process->parent;
    while (ancestor && ancestor->namespaces[NAMESPACE_TIME] != process->children_time)
        ancestor = ancestor->parent;
    if (ancestor || !process->parent || process->thread_count > 1)
        return fail(err, "unsupported", "%s has a time namespace for its children alone, and %s, which cannot be forked; start the program without it",
                    process_label(process), ancestor ? "an ancestor in it" : process->parent ? "several threads" : "is the first process");
    return 0;
}

int namespaces_link(struct world *world, struct error *err)
{
    struct namespaces *all = world->namespaces;
    for (int i = 0; i < world->process_count; i++)
        all->nested |= world->processes[i]->pids.count > 1;
    if (namespace_own_network_read(world, err) < 0)
        return -1;
    if (!all->nested)
        return 0;
    if (check_depth(world, err) < 0)
        return -1;
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        if (process->zombie && process->parent && place_zombie(process, err) < 0)
            return -1;
        if (!process->namespaces[NAMESPACE_PID])
            continue;           /* preflight: it ended meanwhile */
        note_numbers(process);
        if (process->children_time && check_children_time(process, err) < 0)
            return -1;
        if (!process->zombie && process->namespaces[NAMESPACE_USER]->nested && read_host_ids(process, err) < 0)
            return -1;
        bool nested = !process->zombie && process->namespaces[NAMESPACE_PID]->nested;
        for (int k = 0; nested && k < process->thread_count; k++)
            if (read_thread_numbers(&process->threads[k], err) < 0)
                return -1;
    }
    for (int i = NAMESPACE_KINDS; i < all->count; i++)
        if (namespace_contents_read(world, all->list[i], err) < 0)
            return -1;
    return 0;
}

void namespaces_close(struct world *world)
{
    for (int i = 0; world->namespaces && i < world->namespaces->count; i++)
        close_fd(&world->namespaces->list[i]->local);
}
