/*
 * timerfd. A branch is made some time after the capture, so a deadline on a clock that cannot be set is put back as an absolute one: it then
 * falls on the same instant in source and branch.
 */
#include "kinds.h"
#include "../descriptors.h"
#include "../proc.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>

#define FDINFO_LIMIT 4096
#define NANOSECONDS 1000000000ll
#ifndef TFD_IOC_SET_TICKS
#define TFD_IOC_SET_TICKS _IOW('T', 0, uint64_t)
#endif

struct timerfd_state {
    int clock;
    int settime_flags;
    uint64_t ticks;             /* expirations not read yet */
    struct itimerspec spec;     /* it_value: time left when captured, 0 = disarmed or expired */
    struct timespec captured;   /* of its clock */
    struct timespec monotonic;  /* at the same moment */
};

static bool timerfd_match(const struct description *description)
{
    return strcmp(description->link, "anon_inode:[timerfd]") == 0;
}

static int timerfd_capture(struct world *world, struct description *description, struct error *err)
{
    (void)world;
    struct timerfd_state *state = description->data = must_alloc(sizeof *state);
    /*
     * Asking first winds an expired periodic timer on to its next period, counting the periods missed as unread ticks: nothing that its
     * owner can tell, and the only way to learn the phase (fdinfo shows 0 for a timer that has expired).
     */
    if (timerfd_gettime(description->local, &state->spec) < 0)
        return fail_errno(err, "%s: cannot read it", description_label(description));
    clock_gettime(CLOCK_MONOTONIC, &state->monotonic);
    AUTO_FREE char *text = proc_read(err, FDINFO_LIMIT, NULL, "/proc/self/fdinfo/%d", description->local);
    if (!text)
        return -1;
    const char *clock = proc_field(text, "clockid"), *ticks = proc_field(text, "ticks"), *flags = proc_field(text, "settime flags");
    if (!clock || !ticks || !flags)
        return fail(err, "internal", "%s: the kernel does not tell its state", description_label(description));
    state->clock = atoi(clock);
    state->ticks = strtoull(ticks, NULL, 10);
    state->settime_flags = (int)strtol(flags, NULL, 8);
    clock_gettime(state->clock, &state->captured);
    return 0;
}

static struct timespec sum(struct timespec a, struct timespec b)
{
    struct timespec total = { a.tv_sec + b.tv_sec, a.tv_nsec + b.tv_nsec };
    if (total.tv_nsec >= NANOSECONDS) {
        total.tv_nsec -= NANOSECONDS;
        total.tv_sec++;
    }
    return total;
}

static bool clock_can_be_set(int clock)
{
    return clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_ALARM;
}

static int timerfd_emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    const struct timerfd_state *state = description->data;
    struct batch *batch = &plan->common[stage];
    const char *what = description_label(description);
    uint64_t slot = SLOT(plan, description);
    EMIT(batch, what, SYS_timerfd_create, (uint64_t)state->clock, 0);
    emit_to_slot(batch, description, what);
    if (state->spec.it_value.tv_sec || state->spec.it_value.tv_nsec) {
        struct itimerspec spec = state->spec;
        int flags = state->settime_flags & (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET);
        /* A relative timer on the wall clock does not move when that clock is set: it must stay relative. */
        if (!clock_can_be_set(state->clock))
            flags |= TFD_TIMER_ABSTIME;
        if (flags & TFD_TIMER_ABSTIME)
            spec.it_value = sum(spec.it_value, state->captured);
        uint64_t place = plan_data(plan, &spec, sizeof spec);
        if (!(flags & TFD_TIMER_ABSTIME))
            emit_time_left(batch, place + offsetof(struct itimerspec, it_value), spec.it_value, &state->monotonic, 1, what);
        EMIT(batch, what, SYS_timerfd_settime, slot, (uint64_t)flags, place, 0);
    }
    if (state->ticks)
        EMIT(batch, what, SYS_ioctl, slot, TFD_IOC_SET_TICKS, plan_data(plan, &state->ticks, sizeof state->ticks));
    emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_timerfd = {
    .name = "timerfd",
    .match = timerfd_match,
    .capture = timerfd_capture,
    .emit = timerfd_emit,
};
