/*
 * Interval timers and POSIX timers of the process. A branch is ready some time after the capture; where the clock allows it a deadline is
 * put back as an absolute one, so that it falls on the same instant on both sides.
 */
#include "parts.h"
#include "../namespaces.h"
#include "../proc.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef PR_TIMER_CREATE_RESTORE_IDS
#define PR_TIMER_CREATE_RESTORE_IDS 77
#define PR_TIMER_CREATE_RESTORE_IDS_OFF 0
#define PR_TIMER_CREATE_RESTORE_IDS_ON 1
#define PR_TIMER_CREATE_RESTORE_IDS_GET 2
#endif
#define INTERVAL_TIMERS 3
#define PROC_LIMIT (1u << 20)
#define NANOSECONDS 1000000000ll
#define MAX_TIMERS 1024
#define MAX_ID_BY_COUNTING 4096

/*
 * Time goes on while the source is frozen: a timer that was still running when it was asked may have rung before the pending signals were read. Then
 * the signal is among them, and must not come a second time.
 */
static bool rang_meanwhile(const struct process *process, const struct timespec *asked, struct timespec left)
{
    struct timespec due = timespec_sum(*asked, left);
    /* It was asked by the clock of its time namespace. */
    int64_t ahead = process->namespaces[NAMESPACE_TIME]->monotonic_offset;
    struct timespec offset = { ahead / NANOSECONDS - (ahead % NANOSECONDS < 0), (ahead % NANOSECONDS + NANOSECONDS) % NANOSECONDS };
    struct timespec read = timespec_sum(process->state->pending_read, offset);
    return due.tv_sec < read.tv_sec || (due.tv_sec == read.tv_sec && due.tv_nsec <= read.tv_nsec);
}

static bool is_pending(const siginfo_t *list, int count, int signal, int code, int timer)
{
    for (int i = 0; i < count; i++)
        if (list[i].si_signo == signal && list[i].si_code == code && (code != SI_TIMER || list[i].si_timerid == timer))
            return true;
    return false;
}

/* ---- setitimer ---- */

struct interval_memo {
    uint64_t timers, now;
};

static int interval_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    if (!query_is_leader(query))
        return 0;
    struct interval_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->timers = query_reserve(query, INTERVAL_TIMERS * sizeof(struct itimerval));
    for (int i = 0; i < INTERVAL_TIMERS; i++)
        ASK(query, SYS_getitimer, (uint64_t)i, mine->timers + (uint64_t)i * sizeof(struct itimerval));
    mine->now = query_reserve(query, sizeof(struct timespec));
    ASK(query, SYS_clock_gettime, CLOCK_MONOTONIC, mine->now);
    return 0;
}

static int interval_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    if (!memo)
        return 0;
    const struct interval_memo *mine = memo;
    struct process_state *state = process_state(query_thread(query)->process);
    memcpy(state->interval_timers, query_read(query, mine->timers), sizeof state->interval_timers);
    memcpy(&state->interval_timers_read, query_read(query, mine->now), sizeof state->interval_timers_read);
    return 0;
}

/*
 * A periodic one that has rung goes on only when its signal is taken; until then it is told as not running, but with a period. Ringing at once it comes into
 * that state: of SIGALRM one is pending at most, and where it is ignored nobody takes it.
 */
static void emit_waiting_period(struct batch *batch, struct timeval period)
{
    struct itimerval timer = { period, { 0, 1 } };
    if (period.tv_sec || period.tv_usec)
        EMIT(batch, "interval timer", SYS_setitimer, ITIMER_REAL, plan_data(batch->plan, &timer, sizeof timer), 0);
}

static int interval_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct process *process = thread->process;
    if (thread != &process->threads[0])
        return 0;
    const struct process_state *state = process->state;
    for (int i = 0; i < INTERVAL_TIMERS; i++) {
        const struct itimerval *timer = &state->interval_timers[i];
        if (!timer->it_value.tv_sec && !timer->it_value.tv_usec) {
            if (i == ITIMER_REAL)
                emit_waiting_period(batch, timer->it_interval);
            continue;
        }
        struct timespec left = { timer->it_value.tv_sec, timer->it_value.tv_usec * 1000 };
        if (i == ITIMER_REAL && rang_meanwhile(process, &state->interval_timers_read, left)
            && is_pending(state->pending, state->pending_count, SIGALRM, SI_KERNEL, 0)) {
            left = timespec_sum(left, (struct timespec){ timer->it_interval.tv_sec, timer->it_interval.tv_usec * 1000 });
            if (!timer->it_interval.tv_sec && !timer->it_interval.tv_usec)
                continue;
        }
        uint64_t place = plan_data(batch->plan, timer, sizeof *timer);
        /* The other two count CPU time, which did not pass. */
        if (i == ITIMER_REAL)
            emit_time_left(batch, place + offsetof(struct itimerval, it_value), left, &state->interval_timers_read, 1000, "interval timer");
        EMIT(batch, "interval timer", SYS_setitimer, (uint64_t)i, place, 0);
    }
    return 0;
}

const struct part part_interval_timers = {
    .name = "interval timers", .ask = interval_ask, .collect = interval_collect, .emit = interval_emit,
};

/* ---- timer_create ---- */

struct posix_memo {
    uint64_t specs;             /* struct itimerspec, one a timer */
    uint64_t now;               /* struct timespec of each of the clocks below */
};

/* Clocks that nobody sets: on them a time left and a deadline are the same. */
static const clockid_t steady_clocks[STEADY_CLOCKS] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME };

/*
 *     ID: 0
 *     signal: 60/00007fff86e452a8
 *     notify: signal/pid.2634
 *     ClockID: 0
 */
int timers_parse(const struct process *process, const char *text, struct process_state *state, struct error *err)
{
    for (const char *at = strstr(text, "ID: "); at && *at; at = strstr(at + 1, "\nID: ")) {
        struct posix_timer timer = { 0 };
        char kind[8], target[8];
        unsigned long value;
        if (sscanf(at, " ID: %d signal: %d/%lx notify: %7[a-z]/%7[a-z].%d ClockID: %d", &timer.id, &timer.signal, &value, kind, target,
                   &timer.host_target, &timer.clock) != 7)
            return fail(err, "internal", "%s: its list of timers is not understood", process_label(process));
        if (state->timer_count == MAX_TIMERS)
            return fail(err, "limit", "%s has more than %d timers", process_label(process), MAX_TIMERS);
        timer.value = value;
        timer.notify = strcmp(kind, "none") == 0 ? SIGEV_NONE : strcmp(kind, "thread") == 0 ? SIGEV_THREAD : SIGEV_SIGNAL;
        if (strcmp(target, "tid") == 0)
            timer.notify |= SIGEV_THREAD_ID;
        state->timers = must_grow(state->timers, (size_t)(state->timer_count + 1) * sizeof timer);
        state->timers[state->timer_count++] = timer;
    }
    return 0;
}

static int posix_ask(struct query *query, void **memo, struct error *err)
{
    if (!query_is_leader(query))
        return 0;
    struct process *process = query_thread(query)->process;
    struct process_state *state = process_state(process);
    AUTO_FREE char *text = proc_read(err, PROC_LIMIT, NULL, "/proc/%d/timers", process->pid);
    if (!text)
        return -1;
    if (timers_parse(process, text, state, err) < 0)
        return -1;
    struct posix_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->specs = query_reserve(query, (size_t)state->timer_count * sizeof(struct itimerspec));
    for (int i = 0; i < state->timer_count; i++)
        ASK(query, SYS_timer_gettime, (uint64_t)state->timers[i].id, mine->specs + (uint64_t)i * sizeof(struct itimerspec));
    mine->now = query_reserve(query, sizeof state->timers_read);
    for (int i = 0; i < STEADY_CLOCKS && state->timer_count; i++)
        ASK(query, SYS_clock_gettime, (uint64_t)steady_clocks[i], mine->now + (uint64_t)i * sizeof(struct timespec));
    return 0;
}

static int posix_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    if (!memo)
        return 0;
    const struct posix_memo *mine = memo;
    struct process_state *state = process_state(query_thread(query)->process);
    const struct itimerspec *specs = query_read(query, mine->specs);
    for (int i = 0; i < state->timer_count; i++)
        state->timers[i].spec = specs[i];
    memcpy(state->timers_read, query_read(query, mine->now), sizeof state->timers_read);
    return 0;
}

/* Since Linux 6.15 a process may ask for the ids that its next timers get. */
static bool can_choose_ids(void)
{
    static int answer = -1;
    if (answer < 0)
        answer = prctl(PR_TIMER_CREATE_RESTORE_IDS, PR_TIMER_CREATE_RESTORE_IDS_GET, 0, 0, 0) >= 0;
    return answer;
}

static int thread_of(const struct process *process, int host)
{
    for (int i = 0; i < process->thread_count; i++)
        if (process->threads[i].tid == host)
            return inner_tid(&process->threads[i]);
    return 0;
}

static int emit_create(struct batch *batch, const struct process *process, const struct posix_timer *timer, int *next_id, struct error *err)
{
    struct plan *plan = batch->plan;
    struct { uint64_t value; int32_t signal, notify, thread; int32_t pad[11]; } event = {
        .value = timer->value, .signal = timer->signal, .notify = timer->notify,
    };
    _Static_assert(sizeof event == 64, "struct sigevent is 64 bytes");
    if (timer->notify & SIGEV_THREAD_ID)
        event.thread = thread_of(process, timer->host_target);
    /* One whose thread has ended goes on without telling anybody; the kernel makes none for a thread that is not there. */
    if (timer->notify & SIGEV_THREAD_ID && !event.thread)
        event.notify = SIGEV_NONE;
    uint64_t event_address = plan_data(plan, &event, sizeof event);
    uint64_t id = plan_data(plan, &timer->id, sizeof timer->id);
    if (!can_choose_ids()) {
        /* Ids count up: make and delete timers until it is the wanted one's turn. */
        if (timer->id > MAX_ID_BY_COUNTING)
            return fail(err, "unsupported", "%s has a timer with the id %d, which needs Linux 6.15 or newer", process_label(process), timer->id);
        for (; *next_id < timer->id; ++*next_id) {
            uint64_t skipped = plan_reserve(plan, sizeof(uint64_t));
            EMIT(batch, "timer", SYS_timer_create, CLOCK_MONOTONIC, 0, skipped);
            EMIT_FLAGS(batch, "timer", OP_LOAD32(0), SYS_timer_delete, skipped);
        }
        ++*next_id;
    }
    EMIT(batch, "timer", SYS_timer_create, (uint64_t)(int64_t)timer->clock, event_address, id);
    EMIT_FLAGS(batch, "timer id", OP_LOAD32(0), OP_EXPECT, id, (uint64_t)timer->id);
    return 0;
}

static bool signal_is_pending(const struct process *process, const struct posix_timer *timer)
{
    const struct process_state *state = process->state;
    bool pending = is_pending(state->pending, state->pending_count, timer->signal, SI_TIMER, timer->id);
    for (int i = 0; i < process->thread_count && !pending; i++)
        pending = is_pending(process->threads[i].pending->list, process->threads[i].pending->count, timer->signal, SI_TIMER, timer->id);
    return pending;
}

static void emit_arm(struct batch *batch, const struct process *process, const struct posix_timer *timer)
{
    const struct process_state *state = process->state;
    struct itimerspec spec = timer->spec;
    if (timer->clock >= 0 && rang_meanwhile(process, &state->timers_read[0], spec.it_value) && signal_is_pending(process, timer)) {
        spec.it_value = timespec_sum(spec.it_value, spec.it_interval);
        if (!spec.it_interval.tv_sec && !spec.it_interval.tv_nsec)
            return;
    }
    if (!spec.it_value.tv_sec && !spec.it_value.tv_nsec)
        return;
    bool boottime = timer->clock == CLOCK_BOOTTIME || timer->clock == CLOCK_BOOTTIME_ALARM;
    bool steady = timer->clock == CLOCK_MONOTONIC || boottime;
    if (steady)
        spec.it_value = timespec_sum(spec.it_value, state->timers_read[boottime]);
    uint64_t place = plan_data(batch->plan, &spec, sizeof spec);
    /* On the wall clock a relative timer must not move when it is set, and an absolute one cannot be told from it. CPU time did not pass. */
    if (!steady && timer->clock >= 0 && timer->clock != CLOCK_PROCESS_CPUTIME_ID && timer->clock != CLOCK_THREAD_CPUTIME_ID)
        emit_time_left(batch, place + offsetof(struct itimerspec, it_value), spec.it_value, &state->timers_read[0], 1, "timer");
    EMIT(batch, "timer", SYS_timer_settime, (uint64_t)timer->id, steady ? TIMER_ABSTIME : 0, place, 0);
}

static int by_id(const void *left, const void *right)
{
    return ((const struct posix_timer *)left)->id - ((const struct posix_timer *)right)->id;
}

static int posix_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    const struct process *process = thread->process;
    struct process_state *state = process->state;
    if (thread != &process->threads[0] || !state->timer_count)
        return 0;
    qsort(state->timers, (size_t)state->timer_count, sizeof *state->timers, by_id);
    if (can_choose_ids())
        EMIT(batch, "timer ids", SYS_prctl, PR_TIMER_CREATE_RESTORE_IDS, PR_TIMER_CREATE_RESTORE_IDS_ON);
    int next_id = 0;
    for (int i = 0; i < state->timer_count; i++) {
        if (emit_create(batch, process, &state->timers[i], &next_id, err) < 0)
            return -1;
        emit_arm(batch, process, &state->timers[i]);
    }
    if (can_choose_ids())
        EMIT(batch, "timer ids", SYS_prctl, PR_TIMER_CREATE_RESTORE_IDS, PR_TIMER_CREATE_RESTORE_IDS_OFF);
    return 0;
}

const struct part part_posix_timers = { .name = "POSIX timers", .ask = posix_ask, .collect = posix_collect, .emit = posix_emit };
