#include "world.h"
#include "proc.h"

#include <stdio.h>
#include <string.h>

const char *process_label(const struct process *process)
{
    static char ring[4][64];
    static unsigned next;
    char *label = ring[next++ % 4];
    struct error ignored = { 0 };
    AUTO_FREE char *name = proc_read(&ignored, 256, NULL, "/proc/%d/comm", process->pid);
    if (name)
        name[strcspn(name, "\n")] = 0;
    snprintf(label, sizeof ring[0], "pid %d (%.32s)", process->ns_pid ? process->ns_pid : process->pid, name ? name : "?");
    return label;
}

struct process *process_by_ns_pid(const struct world *world, int ns_pid)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->ns_pid == ns_pid)
            return world->processes[i];
    return NULL;
}
