#include "capture.h"
#include "cgroups.h"
#include "doubt.h"
#include "family.h"
#include "files.h"
#include "inject.h"
#include "locks.h"
#include "memory.h"
#include "mounts.h"
#include "parts/parts.h"
#include "posix_queues.h"
#include "shared.h"
#include "sharing.h"
#include "sysv.h"
#include "tasks.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

/* Descriptions start at a round number above every one in use, so that debugging output is readable. */
#define SLOT_MINIMUM 64

/* The text of a browser's maps takes a millisecond to print and parse, so every core helps. */
struct map_reader {
    struct world *world;
    int *next;
    struct error err;
};

static void *read_maps(void *argument)
{
    struct map_reader *reader = argument;
    for (;;) {
        int index = __atomic_fetch_add(reader->next, 1, __ATOMIC_SEQ_CST);
        if (index >= reader->world->process_count || reader->err.code)
            return NULL;
        struct process *process = reader->world->processes[index];
        if (!process->zombie)
            memory_read_map(process, &reader->err);
    }
}

static int capture_maps(struct world *world, struct error *err)
{
    int next = 0;
    struct map_reader readers[2] = { { .world = world, .next = &next }, { .world = world, .next = &next } };
    pthread_t helper;
    bool helped = world->process_count > 4 && pthread_create(&helper, NULL, read_maps, &readers[1]) == 0;
    read_maps(&readers[0]);
    if (helped)
        pthread_join(helper, NULL);
    for (int i = 0; i < 2; i++) {
        if (readers[i].err.code) {
            *err = readers[i].err;
            return -1;
        }
    }
    return 0;
}

/* Before any file is touched. */
static int list_descriptors(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        if (!process->zombie && (descriptors_list(process, err) < 0 || descriptors_refuse_servers(process, err) < 0))
            return -1;
    }
    return 0;
}

/*
 * A walk over the page tables of all processes takes some milliseconds: a helper does it while the processes are asked. Guard pages, which
 * it finds too, are a part of the batches, so it must have ended before these are compiled.
 */
struct page_reader {
    struct world *world;
    struct error err;
};

static void *read_pages(void *argument)
{
    struct page_reader *reader = argument;
    struct world *world = reader->world;
    for (int i = 0; i < world->process_count && !reader->err.code; i++)
        if (!world->processes[i]->zombie)
            memory_scan_pages(world->processes[i], &reader->err);
    if (!reader->err.code)
        families_find(world);
    return NULL;
}

static int capture_objects(struct world *world, struct error *err)
{
    if (sysv_semaphores_read(world, err) < 0 || inject_queries(world, err) < 0 || landlock_check(world, err) < 0)
        return -1;
    if (descriptors_describe(world, err) < 0)
        return -1;
    if (mqueue_read(world, err) < 0 || descriptors_capture(world, err) < 0)
        return -1;
    if (locks_read(world, err) < 0)
        return -1;
    if (sysv_read(world, err) < 0 || shared_bind_maps(world, err) < 0)
        return -1;
    return files_bind_directories(world, err) < 0 ? -1 : files_bind_maps(world, err);
}

int capture(struct world *world, struct error *err)
{
    world->slot_base = SLOT_MINIMUM;
    if (list_descriptors(world, err) < 0 || tasks_read(world, err) < 0 || sharing_read(world, err) < 0 || mounts_read(world, err) < 0
        || cgroups_read(world, err) < 0 || places_read(world, err) < 0 || capture_maps(world, err) < 0)
        return -1;
    struct page_reader pages = { .world = world };
    pthread_t helper;
    bool helped = pthread_create(&helper, NULL, read_pages, &pages) == 0;
    int status = capture_objects(world, err);
    if (helped)
        pthread_join(helper, NULL);
    else
        read_pages(&pages);
    if (status == 0 && pages.err.code) {
        *err = pages.err;
        return -1;
    }
    return status < 0 || doubts_check(err) < 0 ? -1 : descriptors_check_room(world, err);
}
