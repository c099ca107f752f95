#include "capture.h"
#include "files.h"
#include "inject.h"
#include "memory.h"
#include "shared.h"
#include "sysv.h"
#include "tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* Descriptions start at a round number above every one in use, so that debugging output is readable. */
#define SLOT_MINIMUM 64

static int capture_processes(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        if (process->zombie)
            continue;
        if (descriptors_list(process, err) < 0 || memory_read_map(process, err) < 0)
            return -1;
    }
    return 0;
}

static int capture_pages(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++)
        if (!world->processes[i]->zombie && memory_scan_pages(world->processes[i], err) < 0)
            return -1;
    return 0;
}

int capture(struct world *world, struct error *err)
{
    world->slot_base = SLOT_MINIMUM;
    if (tasks_read(world, err) < 0)
        return -1;
    if (capture_processes(world, err) < 0)
        return -1;
    if (inject_queries(world, err) < 0)
        return -1;
    if (descriptors_describe(world, err) < 0)
        return -1;
    if (descriptors_capture(world, err) < 0)
        return -1;
    if (sysv_read(world, err) < 0 || shared_bind_maps(world, err) < 0)
        return -1;
    if (files_bind_maps(world, err) < 0)
        return -1;
    return capture_pages(world, err);
}
