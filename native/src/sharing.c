/*
 * kcmp tells whether two processes share a table. In a branch all processes share one descriptor table until each takes its own (restore.c); one set
 * of processes may simply keep it. Memory without threads is shared between vfork and exec only, or by programs that nobody writes any more.
 */
#include "sharing.h"
#include "doubt.h"
#include "namespaces.h"

#include <sys/syscall.h>
#include <unistd.h>

enum { COMPARE_VM = 1, COMPARE_FILES = 2, COMPARE_FS = 3 };     /* enum kcmp_type of linux/kcmp.h */

static int same(pid_t one, pid_t other, int type)
{
    long result = syscall(SYS_kcmp, one, other, type, 0, 0);
    if (result < 0)
        doubt(ANSWERS(ESRCH), "cannot tell what pids %d and %d of the host share", one, other);
    return result < 0 ? -1 : result == 0;
}

int sharing_memory(pid_t one, pid_t other)
{
    return same(one, other, COMPARE_VM);
}

bool sharing_directories(pid_t one, pid_t other)
{
    return same(one, other, COMPARE_FS) != 0;
}

bool sharing_descriptors(pid_t one, pid_t other)
{
    return same(one, other, COMPARE_FILES) != 0;
}

static struct process *group_of(struct process *process)
{
    return process->files_group ? process->files_group : process;
}

static int read_files(struct process *process, struct process **only_group, struct error *err)
{
    struct process *parent = process->parent;
    if (same(parent->pid, process->pid, COMPARE_FILES) != 1)
        return 0;
    struct process *group = group_of(parent);
    if (*only_group && *only_group != group)
        return fail(err, "unsupported", "%s shares its descriptor table with %s, and other processes share another one (clone with CLONE_FILES), which "
                    "cannot be forked; end some of them", process_label(process), process_label(parent));
    *only_group = parent->files_group = process->files_group = group;
    return 0;
}

int sharing_read(struct world *world, struct error *err)
{
    struct process *only_group = NULL;
    for (int i = 1; i < world->process_count; i++) {
        struct process *process = world->processes[i], *parent = process->parent;
        if (process->zombie || parent->zombie)
            continue;
        process->shares_fs = same(parent->pid, process->pid, COMPARE_FS) == 1;
        if (read_files(process, &only_group, err) < 0)
            return -1;
        /* Who enters a mount namespace must not share its root then; a child in another pid namespace is forked in roundabout ways. */
        bool elsewhere = process->namespaces[NAMESPACE_PID] != parent->namespaces[NAMESPACE_PID];
        if (process->shares_fs && (elsewhere || process->namespaces[NAMESPACE_MNT]->nested))
            return fail(err, "unsupported", "%s shares its working directory with %s inside nested namespaces, which cannot be forked; end one of them",
                        process_label(process), process_label(parent));
    }
    return 0;
}

int sharing_group_size(const struct process *process)
{
    const struct world *world = process->world;
    int size = 0;
    for (int i = 0; process->files_group && i < world->process_count; i++)
        size += world->processes[i]->files_group == process->files_group;
    return size ? size : 1;
}
