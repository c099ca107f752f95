#include "plan.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#define STATUS_FLAGS (O_APPEND | O_NONBLOCK | O_ASYNC | O_DIRECT | O_NOATIME)

uint64_t plan_reserve(struct plan *plan, size_t size)
{
    uint64_t address = plan->arena + plan->used;
    plan->used += (size + 15) & ~(size_t)15;
    if (plan->used > plan->size)
        end_at_once("the arena of %zu MiB is full", plan->size >> 20);
    return address;
}

void *plan_local(struct plan *plan, uint64_t address)
{
    return plan->arena_local + (address - plan->arena);
}

uint64_t plan_data(struct plan *plan, const void *data, size_t size)
{
    uint64_t address = plan_reserve(plan, size);
    if (size)                   /* an empty table may have no address */
        memcpy(plan_local(plan, address), data, size);
    return address;
}

uint64_t plan_string(struct plan *plan, const char *text)
{
    return plan_data(plan, text, strlen(text) + 1);
}

/* Most ops of a run name the same object: keep one copy of the text. */
static uint64_t what_string(struct plan *plan, const char *text)
{
    static uint64_t last;
    if (last && strcmp(plan_local(plan, last), text) == 0)
        return last;
    last = plan_string(plan, text);
    return last;
}

int emit_op(struct batch *batch, struct op op, const char *what, ...)
{
    char object[256], text[256 + 80];
    va_list args;
    va_start(args, what);
    vsnprintf(object, sizeof object, what, args);
    va_end(args);
    bool named = !batch->who || strncmp(object, "pid ", 4) == 0;
    snprintf(text, sizeof text, "%.64s%s%s", named ? "" : batch->who, named ? "" : ": ", object);
    if (batch->count == batch->capacity) {
        batch->capacity = batch->capacity ? batch->capacity * 2 : 16;
        batch->ops = must_grow(batch->ops, (size_t)batch->capacity * sizeof *batch->ops);
    }
    op.what = what_string(batch->plan, text);
    batch->ops[batch->count] = op;
    return batch->count++;
}

uint64_t emit_result_cell(struct batch *batch)
{
    struct op *op = &batch->ops[batch->count - 1];
    int64_t none = -1;
    if (!op->cell)
        op->cell = plan_data(batch->plan, &none, sizeof none);
    return op->cell;
}

#define NANOSECONDS 1000000000ll
#define COUNTABLE_SECONDS 4000000000ll  /* of 9.2 thousand million: room for the clock itself */

static int64_t nanoseconds_of(const struct timespec *time)
{
    return time->tv_sec < COUNTABLE_SECONDS ? time->tv_sec * NANOSECONDS + time->tv_nsec : -1;
}

struct timespec timespec_sum(struct timespec a, struct timespec b)
{
    struct timespec total = { a.tv_sec + b.tv_sec, a.tv_nsec + b.tv_nsec };
    if (total.tv_nsec >= NANOSECONDS) {
        total.tv_nsec -= NANOSECONDS;
        total.tv_sec++;
    }
    return total;
}

void emit_time_left(struct batch *batch, uint64_t cell, struct timespec left, const struct timespec *captured, uint64_t unit, const char *what)
{
    int64_t nanoseconds = nanoseconds_of(&left);
    if (nanoseconds >= 0)
        EMIT(batch, what, OP_TIME_LEFT, cell, (uint64_t)(nanoseconds + nanoseconds_of(captured)), unit);
}

void emit_period_left(struct batch *batch, uint64_t cell, const struct itimerspec *spec, const struct timespec *captured, uint64_t missed,
                      const char *what)
{
    int64_t nanoseconds = nanoseconds_of(&spec->it_value), period = nanoseconds_of(&spec->it_interval);
    if (nanoseconds >= 0)
        EMIT(batch, what, OP_TIME_LEFT, cell, (uint64_t)(nanoseconds + nanoseconds_of(captured)), 1, (uint64_t)(period > 0 ? period : 0), missed);
}

void emit_to_slot(struct batch *batch, const struct description *description, const char *what)
{
    uint64_t cell = emit_result_cell(batch);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_dup3, cell, SLOT(batch->plan, description), 0);
    EMIT_FLAGS(batch, what, OP_LOAD(0), SYS_close, cell);
}

void emit_status_flags(struct batch *batch, const struct description *description, const char *what)
{
    int flags = description->flags & STATUS_FLAGS;
    uint64_t slot = SLOT(batch->plan, description);
    /* The kernel tells the owner the number by which O_ASYNC was set (si_fd): so it is set by one of those that the source has. */
    if (flags & O_ASYNC && description->holder) {
        EMIT(plan_own(batch->plan, description->holder), what, SYS_fcntl, (uint64_t)description->holder_fd, F_SETFL, (uint64_t)flags);
        flags &= ~O_ASYNC;
    }
    if (flags)
        EMIT(batch, what, SYS_fcntl, slot, F_SETFL, (uint64_t)flags);
    if (description->owner_pid) {       /* by pid 1 in the late batch, when all processes exist */
        struct { int type, pid; } owner = { description->owner_type, description->owner_pid };
        EMIT(plan_late(batch->plan), what, SYS_fcntl, slot, F_SETOWN_EX, plan_data(batch->plan, &owner, sizeof owner));
    }
    if (description->owner_signal)
        EMIT(batch, what, SYS_fcntl, slot, F_SETSIG, (uint64_t)description->owner_signal);
}

struct batch *plan_fresh_creator(struct plan *plan, enum stage stage, int ns_pid, uint32_t uid, uint32_t gid)
{
    plan->creators = must_grow(plan->creators, (size_t)(plan->creator_count + 1) * sizeof *plan->creators);
    struct creator *creator = &plan->creators[plan->creator_count++];
    *creator = (struct creator){ .stage = stage, .ns_pid = ns_pid, .uid = uid, .gid = gid };
    creator->batch = must_alloc(sizeof *creator->batch);
    creator->batch->plan = plan;
    return creator->batch;
}

struct batch *plan_creator(struct plan *plan, enum stage stage, int ns_pid, uint32_t uid, uint32_t gid)
{
    if (ns_pid == 1 && uid == 0 && gid == 0)
        return &plan->common[stage];
    for (int i = 0; i < plan->creator_count; i++) {
        struct creator *creator = &plan->creators[i];
        if (creator->stage == stage && creator->ns_pid == ns_pid && creator->uid == uid && creator->gid == gid)
            return creator->batch;
    }
    return plan_fresh_creator(plan, stage, ns_pid, uid, gid);
}

struct batch *plan_late(struct plan *plan)
{
    return &plan->late;
}

struct batch *plan_session(struct plan *plan, const struct process *leader)
{
    return &plan->session[leader->index];
}

struct batch *plan_own(struct plan *plan, const struct process *process)
{
    return &plan->own[process->index];
}

uint64_t batch_place(struct batch *batch)
{
    struct plan *plan = batch->plan;
    uint64_t address = plan_reserve(plan, (size_t)(batch->count + 1) * sizeof(struct op));
    struct op *ops = plan_local(plan, address);
    if (batch->count)
        memcpy(ops, batch->ops, (size_t)batch->count * sizeof *ops);
    ops[batch->count] = (struct op){ .number = OP_STOP };
    free(batch->ops);
    batch->ops = NULL;
    batch->count = batch->capacity = 0;
    return address;
}
