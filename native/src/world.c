#include "world.h"
#include "proc.h"

#include <stdio.h>
#include <string.h>

void process_command(const struct process *process, char *name, size_t size)
{
    struct error ignored = { 0 };
    AUTO_FREE char *text = proc_read(&ignored, 256, NULL, "/proc/%d/comm", process->pid);
    char *end = text ? strrchr(text, '\n') : NULL;      /* the last one is the kernel's, others are the name's own */
    if (end)
        *end = 0;
    snprintf(name, size, "%s", text && *text ? text : "?");
    make_printable(name);
}

/* Labels are made for many steps that might fail, most of them in the pause: the name is read once. */
static const char *command_of(const struct process *process)
{
    struct process *owner = (struct process *)process;
    if (!owner->command[0])
        process_command(process, owner->command, sizeof owner->command);
    return owner->command;
}

const char *process_label(const struct process *process)
{
    static char ring[4][64];
    static unsigned next;
    char *label = ring[next++ % 4];
    snprintf(label, sizeof ring[0], "pid %d (%s)", process->ns_pid ? process->ns_pid : process->pid, command_of(process));
    return label;
}

struct process *process_by_ns_pid(const struct world *world, int ns_pid)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->ns_pid == ns_pid)
            return world->processes[i];
    return NULL;
}
