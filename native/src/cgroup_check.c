/*
 * Cgroups made inside a workspace. Only a program with a user and a cgroup namespace of its own can mount them and make any; a branch's processes
 * all live in the branch's own group. So a process further down is refused (and so are groups that a mount shows: mounts.c).
 */
#include "cgroup_check.h"
#include "proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_LIMIT (1u << 20)

/* "8:pids:/tclone/ws-1\n": the path of a hierarchy; *length without the newline. */
static const char *path_of(const char *line, size_t *length)
{
    const char *path = strchr(line, ':');
    path = path ? strchr(path + 1, ':') : NULL;
    *length = path ? strcspn(path + 1, "\n") : 0;
    return path ? path + 1 : NULL;
}

static const char *line_with(const char *text, const char *start, size_t length)
{
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        if (strncmp(line, start, length) == 0)
            return line;
    return NULL;
}

static void check_line(const struct process *process, const char *line, const char *own_text, struct blockers *blockers)
{
    size_t length, own_length;
    const char *path = path_of(line, &length);
    const char *own = path ? line_with(own_text, line, (size_t)(path - line)) : NULL;
    const char *own_path = own ? path_of(own, &own_length) : NULL;
    char message[384];
    if (own_path && own_length == 1)
        own_length = 0;         /* the root of the hierarchy */
    if (!own_path || length <= own_length + 1 || strncmp(path, own_path, own_length) != 0 || path[own_length] != '/')
        return;
    snprintf(message, sizeof message, "%s is in the cgroup %.*s, which was made inside; move it back to the group above (write its pid to cgroup.procs there)",
             process_label(process), (int)(length - own_length < 200 ? length - own_length : 200), path + own_length);
    blockers_add(blockers, process, -1, message);
}

void cgroups_preflight(const struct process *process, const struct process *first, struct blockers *blockers)
{
    static char *own_text;
    struct error ignored = { 0 };
    if (!own_text)
        own_text = proc_read(&ignored, TEXT_LIMIT, NULL, "/proc/%d/cgroup", first->pid);
    if (process == first || !own_text)
        return;
    AUTO_FREE char *text = proc_read(&ignored, TEXT_LIMIT, NULL, "/proc/%d/cgroup", process->pid);
    if (!text || strcmp(text, own_text) == 0)
        return;
    for (const char *line = text; line && *line; line = strchr(line, '\n'), line += line != NULL)
        check_line(process, line, own_text, blockers);
}
