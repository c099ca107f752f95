/* signalfd: only a mask; what it delivers are the pending signals of whoever reads it. */
#include "kinds.h"
#include "../descriptors.h"
#include "../proc.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define FDINFO_LIMIT 4096

static bool signalfd_match(const struct description *description)
{
    return strcmp(description->link, "anon_inode:[signalfd]") == 0;
}

static int signalfd_capture(struct world *world, struct description *description, struct error *err)
{
    (void)world;
    AUTO_FREE char *text = proc_read(err, FDINFO_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
    if (!text)
        return -1;
    const char *field = proc_field(text, "sigmask");
    if (!field)
        return fail(err, "internal", "%s: the kernel does not tell its mask", description_label(description));
    uint64_t *mask = must_alloc(sizeof *mask);
    *mask = strtoull(field, NULL, 16);
    description->data = mask;
    return 0;
}

static int signalfd_emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    EMIT(batch, what, SYS_signalfd4, (uint64_t)-1, plan_data(plan, description->data, sizeof(uint64_t)), sizeof(uint64_t), 0);
    emit_to_slot(batch, description, what);
    emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_signalfd = {
    .name = "signalfd",
    .match = signalfd_match,
    .capture = signalfd_capture,
    .emit = signalfd_emit,
};
