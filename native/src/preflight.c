#include "preflight.h"
#include "cgroups.h"
#include "descriptors.h"
#include "doubt.h"
#include "kinds/kinds.h"
#include "memory.h"
#include "mounts.h"
#include "namespaces.h"
#include "outside.h"
#include "parts/parts.h"
#include "posix_queues.h"
#include "proc.h"
#include "sharing.h"
#include "tasks.h"
#include "waits.h"
#include "settle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PIDFD_THREAD_FLAG O_EXCL    /* PIDFD_THREAD, which older headers lack */
#define SHARING_TRIES 500       /* 2.5 s in all: on a busy machine a child waits long for its turn to call exec */
#define SHARING_PAUSE_US 5000
#define MAX_PROCESSES 4096

/* One look at a workspace. */
struct check {
    struct world *world;
    struct findings *findings;
    struct tcp_ends tcp_ends;
    bool thorough;
    int sharing_tries;                  /* how often it has waited for somebody to stop sharing its parent's memory */
    bool has_memory[MAX_PROCESSES];     /* by index: no zombie, and not gone */
};

/* A refusal is reported; anything else means that the process, or a part of it, went away while it was looked at. */
static void add_refusal(struct check *check, const struct process *process, int fd, const struct error *refused)
{
    if (refused->code && (strcmp(refused->code, "unsupported") == 0 || strcmp(refused->code, "limit") == 0))
        blockers_add(&check->findings->blockers, process, fd, refused->message);
}

static bool kind_is_in(const char *link, const char *const *names)
{
    for (; *names; names++)
        if (strncmp(link, *names, strlen(*names)) == 0)
            return true;
    return false;
}

/* Most descriptors are of kinds that never refuse; only the others are worth a duplicate. */
static bool worth_a_look(const char *link)
{
    static const char *const harmless[] = { "pipe:", "anon_inode:[event", "anon_inode:[timerfd", "anon_inode:[signalfd", "anon_inode:inotify",
                                            "/memfd:", "/usr/", "/home/", "/dev/null", "/dev/pts/", "/dev/shm/", NULL };
    return !kind_is_in(link, harmless);
}

static void check_descriptor(struct check *check, struct process *process, int fd)
{
    struct error err = { 0 };
    struct description description = { .holder = process, .holder_fd = fd, .local = -1, .offset = -1 };
    AUTO_FREE char *link = proc_link(&err, "/proc/%d/fd/%d", process->pid, fd);
    if (link && strncmp(link, "socket:", 7) == 0)
        settle_sockets();
    if (link && !check->thorough && (strcmp(link, "anon_inode:inotify") == 0 || strcmp(link, "anon_inode:[fanotify]") == 0)) {
        int watcher = (int)syscall(SYS_pidfd_getfd, process->pidfd, fd, 0);
        if (watcher >= 0)
            settle_watch(watcher);
    }
    if (!link) {                /* closed meanwhile, refused below for its length, or something else */
        char name[32];
        doubt_error(&err);
        snprintf(name, sizeof name, "fd/%d", fd);
        mounts_refuse_long(process, name, fd, &check->findings->blockers);
    }
    if (!link || !worth_a_look(link) || mounts_refuse_fuse(process, fd, link, &check->findings->blockers))
        return;
    AUTO_CLOSE int local = (int)syscall(SYS_pidfd_getfd, process->pidfd, fd, 0);
    if (local < 0 || fstat(local, &description.st) < 0) {   /* closed meanwhile */
        doubt(ANSWERS(EBADF, ESRCH, EPERM), "%s fd %d cannot be looked at", process_label(process), fd);
        return;
    }
    description.local = local;
    description.link = link;
    description.flags = fcntl(local, F_GETFL);
    for (int i = 0; fd_kinds[i]; i++) {
        if (!fd_kinds[i]->match(&description))
            continue;
        description.kind = fd_kinds[i];
        struct error refused = { 0 };
        if (fd_kinds[i]->check && fd_kinds[i]->check(check->world, &description, &refused) < 0)
            add_refusal(check, process, fd, &refused);
        else if (check->thorough && fd_kinds[i] == &kind_inet)
            outside_note(&check->tcp_ends, &description);
        return;
    }
}

static void check_descriptors(struct check *check, struct process *process)
{
    struct error err = { 0 };
    process->pidfd = (int)syscall(SYS_pidfd_open, process->pid, process->leader_ended ? PIDFD_THREAD_FLAG : 0);
    if (process->pidfd < 0) {
        doubt(ANSWERS(ESRCH, EINVAL, ENOENT), "%s cannot be looked at", process_label(process));
        return;
    }
    if (descriptors_list(process, &err) < 0)
        add_refusal(check, process, -1, &err);
    else
        for (int i = 0; i < process->fd_count; i++)
            check_descriptor(check, process, process->fds[i].fd);
    close_fd(&process->pidfd);
}

static void check_namespaces(struct check *check, struct process *process)
{
    struct error refused = { 0 };
    if (namespaces_of_process(process, &refused) < 0 || mqueue_preflight(process, &refused) < 0)
        add_refusal(check, process, -1, &refused);
}

static void check_places(struct check *check, struct process *process)
{
    struct error refused = { 0 };
    if (places_check(process, &refused) < 0)
        add_refusal(check, process, -1, &refused);
}

/* What nested namespaces hold. */
static void check_contents(struct check *check)
{
    struct error refused = { 0 };
    if (check->world->namespaces && (namespaces_link(check->world, &refused) < 0 || mounts_read(check->world, &refused) < 0))
        add_refusal(check, NULL, -1, &refused);
    mounts_close(check->world);
    namespaces_close(check->world);
}

static void check_tracer(struct check *check, const struct process *process, const char *status)
{
    const char *tracer = proc_field(status, "TracerPid");
    if (!tracer || atoi(tracer) <= 0)
        return;
    char message[256];
    snprintf(message, sizeof message, "%s is traced by another process (a debugger or strace); detach it and fork again", process_label(process));
    blockers_add(&check->findings->blockers, process, -1, message);
}

/* The auxiliary vector tells 32-bit programs by the size of its words, out of the kernel's own memory. */
static void check_word_size(struct check *check, const struct process *process)
{
    char path[64], message[256];
    uint64_t type = 0;
    snprintf(path, sizeof path, "/proc/%d/auxv", process->pid);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, &type, sizeof type) != sizeof type || type < 1 << 16)
        return;
    snprintf(message, sizeof message, "%s is a 32-bit program, which cannot be forked; run its 64-bit build", process_label(process));
    blockers_add(&check->findings->blockers, process, -1, message);
}

/* A program that was entered from the host by a descriptor (a runtime's helper) has no path by which a branch could map it. */
static void check_executable(struct check *check, const struct process *process)
{
    char path[64], message[384];
    struct statx st;
    struct error err = { 0 };
    snprintf(path, sizeof path, "/proc/%d/exe", process->pid);
    AUTO_CLOSE int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0 || statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_MNT_ID, &st) < 0) {
        doubt(ANSWERS(ENOENT, ESRCH, EACCES), "cannot tell what %s runs", process_label(process));
        return;
    }
    if (!(st.stx_mask & STATX_MNT_ID))
        return;
    AUTO_FREE char *link = proc_link(&err, "%s", path);
    doubt_error(&err);
    if (mounts_preflight_knows((int)st.stx_mnt_id) || !link || strncmp(link, "/memfd:", 7) == 0)
        return;
    snprintf(message, sizeof message, "%s runs %.128s, a file outside the workspace's root; start it from a file inside", process_label(process),
             link);
    blockers_add(&check->findings->blockers, process, -1, message);
}

static void check_memory(struct check *check, struct process *process)
{
    struct error refused = { 0 };
    if (memory_read_map(process, &refused) < 0)
        add_refusal(check, process, -1, &refused);
}

static void check_memories(struct check *check)
{
    for (int i = 0; i < check->world->process_count; i++)
        if (check->has_memory[i] && (check->thorough || memory_flags_suspicious(check->world->processes[i])))
            check_memory(check, check->world->processes[i]);
}

static void read_ns_pid(struct process *process, const char *status)
{
    struct world *world = process->world;
    const char *ids = proc_field(status, "NSpid");
    for (const char *at = ids; process == world->processes[0] && at && *at && *at != '\n'; at++)
        world->pid_level += *at == '\t';
    if (namespaces_numbers(world, ids, &process->pids))
        process->ns_pid = process->pids.at[0];
}

/* A process whose first thread has ended, while others live, shows what it has by one of those. */
static bool look_through_other_thread(struct process *process)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", process->group_leader);
    DIR *tasks = opendir(path);
    struct dirent *entry;
    while (tasks && (entry = readdir(tasks)) && !process->leader_ended) {
        if (atoi(entry->d_name) > 0 && atoi(entry->d_name) != process->group_leader) {
            process->pid = atoi(entry->d_name);
            process->leader_ended = true;
        }
    }
    if (tasks)
        closedir(tasks);
    return process->leader_ended;
}

/* Between vfork and exec this is so for a moment. */
static bool goes_on_sharing_memory(struct check *check, const struct process *process)
{
    while (process->parent && sharing_memory(process->parent->pid, process->pid) == 1) {
        if (check->sharing_tries++ >= SHARING_TRIES)
            return true;
        usleep(SHARING_PAUSE_US);
    }
    return false;
}

static void check_sharing(struct check *check, const struct process *process)
{
    if (!goes_on_sharing_memory(check, process))
        return;
    char message[256];
    snprintf(message, sizeof message, "%s shares its memory with %s (vfork, or clone with CLONE_VM), which cannot be forked; let it execute a program, or "
             "end it", process_label(process), process_label(process->parent));
    blockers_add(&check->findings->blockers, process, -1, message);
}

/* Returns whether it is one with memory, which is looked at last: the program that reads it is being loaded meanwhile. */
static bool check_process(struct check *check, struct process *process)
{
    struct error err = { 0 };
    AUTO_FREE char *status = proc_read(&err, 1 << 20, NULL, "/proc/%d/status", process->pid);
    const char *state = status ? proc_field(status, "State") : NULL;
    doubt_error(&err);
    if (!state)
        return false;
    read_ns_pid(process, status);
    if (*state == 'Z' && !look_through_other_thread(process))
        return false;
    tasks_note_exit_signal(process->pid);
    process_note_core_filter(process);
    check_tracer(check, process, status);
    check_sharing(check, process);
    check_namespaces(check, process);
    check_places(check, process);
    check_word_size(check, process);
    mounts_preflight(process, &check->findings->blockers);
    cgroups_preflight(process, check->world->processes[0], &check->findings->blockers);
    check_executable(check, process);
    check_descriptors(check, process);
    return true;
}

static void add_process(struct check *check, pid_t pid)
{
    struct world *world = check->world;
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->group_leader == pid)
            return;
    if (world->process_count == MAX_PROCESSES) {
        char message[128];
        snprintf(message, sizeof message, "the workspace has more than %d processes; end some", MAX_PROCESSES);
        blockers_add(&check->findings->blockers, NULL, -1, message);
        return;
    }
    struct process *process = must_alloc(sizeof *process);
    process->world = world;
    process->pid = process->group_leader = pid;
    process->pidfd = process->mem = process->pagemap = -1;
    world->processes = must_grow(world->processes, (size_t)(world->process_count + 1) * sizeof *world->processes);
    world->processes[world->process_count++] = process;
}

static struct process *find_process(const struct world *world, pid_t group_leader)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->group_leader == group_leader)
            return world->processes[i];
    return NULL;
}

static void add_child(struct check *check, pid_t parent, pid_t child)
{
    int before = check->world->process_count;
    add_process(check, child);
    if (check->world->process_count > before)
        check->world->processes[before]->parent = find_process(check->world, parent);
}

static void add_children_of_thread(struct check *check, pid_t pid, pid_t tid)
{
    struct error err = { 0 };
    AUTO_FREE char *own = proc_read(&err, 1 << 20, NULL, "/proc/%d/task/%d/children", pid, tid);
    char *rest = own;
    for (long child = rest ? strtol(rest, &rest, 10) : 0; child > 0; child = strtol(rest, &rest, 10))
        add_child(check, pid, (pid_t)child);
}

/* A child belongs to the thread that forked it. */
static void add_children(struct check *check, pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    struct dirent *entry;
    while (tasks && (entry = readdir(tasks)))
        if (entry->d_name[0] != '.') {
            add_children_of_thread(check, pid, (pid_t)atoi(entry->d_name));
            waits_note(pid, (pid_t)atoi(entry->d_name));
        }
    if (tasks)
        closedir(tasks);
}

int preflight(pid_t source_pid, const struct options *options, bool thorough, struct findings *findings, struct error *err)
{
    struct world world = { .options = *options, .source_pid = source_pid, .root = -1, .net_ns = -1, .ipc_ns = -1 };
    struct check check = { .world = &world, .findings = findings, .thorough = thorough };
    if (kill(source_pid, 0) < 0)
        return fail(err, "gone", "the source's first process has ended");
    add_process(&check, source_pid);
    for (int i = 0; i < world.process_count; i++) {
        check.has_memory[i] = check_process(&check, world.processes[i]);
        add_children(&check, world.processes[i]->pid);
    }
    check_memories(&check);
    check_contents(&check);
    cgroups_check(&findings->blockers);
    outside_report(&check.tcp_ends, &findings->warnings);
    findings->processes = world.process_count;
    for (int i = 0; i < world.process_count; i++) {
        free(world.processes[i]->fds);
        free(world.processes[i]);
    }
    free(world.processes);
    return 0;
}
