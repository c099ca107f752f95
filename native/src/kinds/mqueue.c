/* Descriptors of POSIX message queues. The queues themselves are made from outside (../posix_queues.c), so here they are only opened. */
#include "kinds.h"
#include "../descriptors.h"
#include "../ipc_namespaces.h"
#include "../posix_queues.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#define MQUEUE_MAGIC 0x19800202

static bool match(const struct description *description)
{
    struct statfs fs;
    return S_ISREG(description->st.st_mode) && !(description->flags & O_PATH) && fstatfs(description->local, &fs) == 0 && fs.f_type == MQUEUE_MAGIC;
}

static int check(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    return mqueue_check_notification(description, err);
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    if (description->holder && check(world, description, err) < 0)
        return -1;
    description->data = mqueue_of_description(description, err);
    return description->data ? 0 : -1;
}

static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    const struct mqueue *queue = description->data;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    if (stage == STAGE_MAKE) {
        ipc_emit_enter(batch, queue->where);
        EMIT(batch, what, SYS_mq_open, plan_string(plan, queue->name), (uint64_t)(description->flags & (O_ACCMODE | O_NONBLOCK)), 0, 0);
        emit_to_slot(batch, description, what);
        ipc_emit_leave(batch, queue->where);
        emit_status_flags(batch, description, what);
    }
    if (stage == STAGE_CONNECT && queue->unlinked) {    /* by then all have opened it; the first removes the name */
        ipc_emit_enter(batch, queue->where);
        EMIT_FLAGS(batch, what, TOLERATING(GONE_NAME), SYS_mq_unlink, plan_string(plan, queue->name));
        ipc_emit_leave(batch, queue->where);
    }
    return 0;
}

const struct fd_kind kind_mqueue = { .name = "message queue", .match = match, .capture = capture, .check = check, .emit = emit };
