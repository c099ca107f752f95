/*
 * SO_PEERCRED names processes in our numbering. One that is alive is looked up in the world; for one that has ended (a daemon that called listen
 * and then forked) only somebody inside the workspace's pid namespace can be told its number there, so a short-lived child of ours asks.
 */
#include "unix_socket.h"
#include "../world.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

int unix_pid_in_workspace(const struct world *world, int host_pid)
{
    for (int i = 0; i < world->process_count; i++) {
        const struct process *process = world->processes[i];
        if (process->group_leader == host_pid)
            return process->ns_pid;
        for (int k = 0; k < process->thread_count; k++)
            if (process->threads[k].tid == host_pid)
                return process->ns_pid;
    }
    return 0;
}

static void __attribute__((noreturn)) ask_inside(const struct unix_table *table, int *answers)
{
    for (int i = 0; i < table->count; i++) {
        struct ucred credentials;
        socklen_t size = sizeof credentials;
        if (!table->sockets[i]->unresolved_pid)
            continue;
        if (getsockopt(table->sockets[i]->description->local, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
            _exit(1);
        answers[i] = credentials.pid;
    }
    _exit(0);
}

static void __attribute__((noreturn)) enter_and_ask(int pid_ns, const struct unix_table *table, int *answers)
{
    if (setns(pid_ns, CLONE_NEWPID) < 0)
        _exit(1);
    pid_t child = fork();
    if (child == 0)
        ask_inside(table, answers);
    int status;
    _exit(child < 0 || waitpid(child, &status, 0) < 0 || status ? 1 : 0);
}

int unix_pids_resolve(struct world *world, struct unix_table *table, struct error *err)
{
    int unresolved = 0;
    for (int i = 0; i < table->count; i++)
        unresolved += table->sockets[i]->unresolved_pid != 0;
    if (unresolved == 0)
        return 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/pid", world->source_pid);
    AUTO_CLOSE int pid_ns = open(path, O_RDONLY | O_CLOEXEC);
    size_t size = (size_t)table->count * sizeof(int);
    int *answers = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pid_ns < 0 || answers == MAP_FAILED)
        return fail_errno(err, "cannot learn who made the workspace's unix sockets");
    pid_t child = fork();
    if (child == 0)
        enter_and_ask(pid_ns, table, answers);
    int status;
    if (child < 0 || waitpid(child, &status, 0) < 0)
        return fail_errno(err, "cannot ask inside the workspace's pid namespace");
    if (status)
        return fail(err, "internal", "who made the workspace's unix sockets cannot be asked inside its pid namespace");
    for (int i = 0; i < table->count; i++)
        if (table->sockets[i]->unresolved_pid && answers[i] > 0)
            table->sockets[i]->peer_credentials.pid = answers[i];
    munmap(answers, size);
    return 0;
}
