#include "preflight.h"
#include "descriptors.h"
#include "proc.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_BLOCKERS 64
#define MAX_PROCESSES 4096

static void add_blocker(struct blockers *blockers, const char *message)
{
    for (int i = 0; i < blockers->count; i++)
        if (strcmp(blockers->messages[i], message) == 0)
            return;
    if (blockers->count == MAX_BLOCKERS)
        return;
    blockers->messages = must_grow(blockers->messages, (size_t)(blockers->count + 1) * sizeof *blockers->messages);
    blockers->messages[blockers->count++] = must_copy_string(message);
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

static void check_descriptor(struct world *world, struct process *process, int fd, struct blockers *blockers)
{
    struct error err = { 0 };
    struct description description = { .holder = process, .holder_fd = fd, .local = -1, .offset = -1 };
    AUTO_FREE char *link = proc_link(&err, "/proc/%d/fd/%d", process->pid, fd);
    if (!link || !worth_a_look(link))
        return;
    AUTO_CLOSE int local = (int)syscall(SYS_pidfd_getfd, process->pidfd, fd, 0);
    if (local < 0 || fstat(local, &description.st) < 0)
        return;                 /* closed meanwhile */
    description.local = local;
    description.link = link;
    description.flags = fcntl(local, F_GETFL);
    for (int i = 0; fd_kinds[i]; i++) {
        if (!fd_kinds[i]->match(&description))
            continue;
        description.kind = fd_kinds[i];
        struct error refused = { 0 };
        if (fd_kinds[i]->check && fd_kinds[i]->check(world, &description, &refused) < 0)
            add_blocker(blockers, refused.message);
        return;
    }
}

static void check_namespace(const struct process *process, const struct process *first, struct blockers *blockers)
{
    static const char *const names[] = { "pid", "user", "mnt", "net", "ipc", "uts" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct error err = { 0 };
        AUTO_FREE char *mine = proc_link(&err, "/proc/%d/ns/%s", process->pid, names[i]);
        AUTO_FREE char *theirs = proc_link(&err, "/proc/%d/ns/%s", first->pid, names[i]);
        if (!mine || !theirs || strcmp(mine, theirs) == 0)
            continue;
        char message[256];
        snprintf(message, sizeof message, "%s has a %s namespace of its own, which cannot be forked yet; start the program without its "
                 "namespace sandbox", process_label(process), names[i]);
        add_blocker(blockers, message);
        return;
    }
}

static void check_process(struct world *world, struct process *process, struct blockers *blockers)
{
    struct error err = { 0 };
    AUTO_FREE char *status = proc_read(&err, 1 << 20, NULL, "/proc/%d/status", process->pid);
    const char *ids = status ? proc_field(status, "NSpid") : NULL;
    for (const char *at = ids; at && *at && *at != '\n'; at++)
        if (*at == '\t' || at == ids)
            process->ns_pid = atoi(at);
    const char *state = status ? proc_field(status, "State") : NULL;
    if (!state || *state == 'Z')
        return;
    const char *tracer = proc_field(status, "TracerPid");
    if (tracer && atoi(tracer) > 0) {
        char message[256];
        snprintf(message, sizeof message, "%s is traced by another process (a debugger or strace); detach it and fork again",
                 process_label(process));
        add_blocker(blockers, message);
    }
    check_namespace(process, world->processes[0], blockers);
    process->pidfd = (int)syscall(SYS_pidfd_open, process->pid, 0);
    if (process->pidfd < 0 || descriptors_list(process, &err) < 0)
        return;
    for (int i = 0; i < process->fd_count; i++)
        check_descriptor(world, process, process->fds[i].fd, blockers);
    close_fd(&process->pidfd);
}

static void add_process(struct world *world, pid_t pid)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->pid == pid)
            return;
    if (world->process_count == MAX_PROCESSES)
        return;
    struct process *process = must_alloc(sizeof *process);
    process->world = world;
    process->pid = pid;
    process->pidfd = process->mem = -1;
    world->processes = must_grow(world->processes, (size_t)(world->process_count + 1) * sizeof *world->processes);
    world->processes[world->process_count++] = process;
}

static void add_children(struct world *world, pid_t pid)
{
    struct error err = { 0 };
    /* Children of other threads than the first are met when frozen; a refusal then leaves the source as it was, too. */
    AUTO_FREE char *own = proc_read(&err, 1 << 20, NULL, "/proc/%d/task/%d/children", pid, pid);
    char *rest = own;
    for (long child = rest ? strtol(rest, &rest, 10) : 0; child > 0; child = strtol(rest, &rest, 10))
        add_process(world, (pid_t)child);
}

int preflight(pid_t source_pid, const struct options *options, struct blockers *blockers, struct error *err)
{
    struct world world = { .options = *options, .source_pid = source_pid, .root = -1, .net_ns = -1, .ipc_ns = -1 };
    if (kill(source_pid, 0) < 0)
        return fail(err, "gone", "the source's first process has ended");
    add_process(&world, source_pid);
    for (int i = 0; i < world.process_count; i++) {
        check_process(&world, world.processes[i], blockers);
        add_children(&world, world.processes[i]->pid);
    }
    for (int i = 0; i < world.process_count; i++) {
        free(world.processes[i]->fds);
        free(world.processes[i]);
    }
    free(world.processes);
    return 0;
}
