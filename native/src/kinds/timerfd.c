/*
 * timerfd. A branch is made some time after the capture: what is left of a relative time is computed when the timer is armed, and periods that ended
 * in between count as unread expirations, so that the timer goes on with the same phase. How it was set shows in fdinfo and stays.
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
#define TRIES 20                /* a period of 1 ms may end during one of them */
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

static bool is_zero(struct timespec time)
{
    return time.tv_sec == 0 && time.tv_nsec == 0;
}

static bool later(struct timespec a, struct timespec b)
{
    return a.tv_sec > b.tv_sec || (a.tv_sec == b.tv_sec && a.tv_nsec > b.tv_nsec);
}

/*
 * Asking for the time left first winds an expired periodic timer on to its next period, counting the periods missed as unread ticks: nothing that its
 * owner can tell, and the only way to learn the phase (fdinfo shows 0 for a timer that has expired).
 */
static int read_once(const struct description *description, struct timerfd_state *state, struct error *err)
{
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

/* Time goes on while the source is frozen: no expiration may lie between the two readings, or it would count twice. */
static int timerfd_capture(struct world *world, struct description *description, struct error *err)
{
    (void)world;
    struct timerfd_state *state = description->data = must_alloc(sizeof *state);
    for (int tries = 0; tries < TRIES; tries++) {
        struct itimerspec again;
        if (read_once(description, state, err) < 0)
            return -1;
        if (timerfd_gettime(description->local, &again) < 0)
            return fail_errno(err, "%s: cannot read it", description_label(description));
        if (!later(again.it_value, state->spec.it_value) && is_zero(again.it_value) == is_zero(state->spec.it_value))
            break;
    }
    return 0;
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
    uint64_t ticks = plan_data(plan, &state->ticks, sizeof state->ticks);
    if (state->spec.it_value.tv_sec || state->spec.it_value.tv_nsec) {
        struct itimerspec spec = state->spec;
        int flags = state->settime_flags & (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET);
        if (flags & TFD_TIMER_ABSTIME)
            spec.it_value = timespec_sum(spec.it_value, state->captured);
        uint64_t place = plan_data(plan, &spec, sizeof spec);
        if (!(flags & TFD_TIMER_ABSTIME))
            emit_period_left(batch, place + offsetof(struct itimerspec, it_value), &spec, &state->monotonic, ticks, what);
        EMIT(batch, what, SYS_timerfd_settime, slot, (uint64_t)flags, place, 0);
    }
    /* Refused when there are none, which only shows when the batch runs. */
    EMIT_FLAGS(batch, what, TOLERATING(NO_TICKS), SYS_ioctl, slot, TFD_IOC_SET_TICKS, ticks);
    emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_timerfd = {
    .name = "timerfd",
    .match = timerfd_match,
    .capture = timerfd_capture,
    .emit = timerfd_emit,
};
