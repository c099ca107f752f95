/* eventfd: the counter and the semaphore flag, from fdinfo (a read would take the counter away). */
#include "kinds.h"
#include "../descriptors.h"
#include "../proc.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#define FDINFO_LIMIT 4096

struct eventfd_state {
    uint64_t count;
    bool semaphore;
};

static bool eventfd_match(const struct description *description)
{
    return strcmp(description->link, "anon_inode:[eventfd]") == 0;
}

static int eventfd_capture(struct world *world, struct description *description, struct error *err)
{
    (void)world;
    AUTO_FREE char *text = proc_read(err, FDINFO_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
    if (!text)
        return -1;
    const char *count = proc_field(text, "eventfd-count");
    if (!count)
        return fail(err, "internal", "%s: the kernel does not tell its count", description_label(description));
    struct eventfd_state *state = must_alloc(sizeof *state);
    state->count = strtoull(count, NULL, 16);
    const char *semaphore = proc_field(text, "eventfd-semaphore");
    state->semaphore = semaphore && *semaphore == '1';
    description->data = state;
    return 0;
}

static int eventfd_emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    const struct eventfd_state *state = description->data;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    bool wide = state->count > UINT32_MAX;
    EMIT(batch, what, SYS_eventfd2, wide ? 0 : state->count, state->semaphore ? EFD_SEMAPHORE : 0);
    emit_to_slot(batch, description, what);
    if (wide)
        EMIT(batch, what, SYS_write, SLOT(plan, description), plan_data(plan, &state->count, sizeof state->count), sizeof state->count);
    emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_eventfd = {
    .name = "eventfd",
    .match = eventfd_match,
    .capture = eventfd_capture,
    .emit = eventfd_emit,
};
