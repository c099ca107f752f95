/*
 * What a process has asked the kernel to undo when it ends (SEM_UNDO). Nothing tells these adjustments, but semop does not let one leave the
 * range of -32768 to 32767, and it carries out all of its operations or none. So a process is made to ask for operations of which a last one
 * can never succeed: EAGAIN says that the adjustment kept in its range up to there, ERANGE that it did not. No semaphore changes.
 */
#include "parts.h"
#include "../sysv_semaphores.h"

#include <errno.h>
#include <linux/kcmp.h>
#include <string.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <unistd.h>

#define VALUE_MAXIMUM 32767     /* SEMVMX */
#define FARTHEST 3              /* the largest adjustment that is told apart, either way; nearly always it is 1 */
#define OPERATIONS 6
#define FEW_SEMAPHORES 64
#define MAX_SEMAPHORES 256      /* that one process is asked about */

struct probe {
    int set, number;
    int above[FARTHEST + 1];    /* op indices: is the adjustment above 0, 1, 2, 3? */
    int below[FARTHEST + 1];    /* below 0, -1, -2, -3? */
};

struct undo_memo {
    int count;
    struct probe probes[MAX_SEMAPHORES];
};

struct undo_entry {
    const struct process *process;
    int id, number, adjustment;
};

static struct undo_entry *entries;
static int entry_count;

/* A process without a list of adjustments is told from one with by comparing it with this program, which has none. */
static bool has_list(const struct process *process)
{
    return syscall(SYS_kcmp, getpid(), process->pid, KCMP_SYSVSEM, 0, 0) != 0;
}

static int ask_operations(struct query *query, int id, struct sembuf *operations, int count, int number)
{
    for (int i = 0; i < 2; i++)
        operations[count++] = (struct sembuf){ (unsigned short)number, -VALUE_MAXIMUM, IPC_NOWAIT };
    uint64_t at = query_data(query, operations, (size_t)count * sizeof *operations);
    return ASK(query, SYS_semop, (uint64_t)id, at, (uint64_t)count);
}

/* Raise the value to its maximum, then lower it far enough that an adjustment above `limit` would leave its range. */
static int ask_above(struct query *query, const struct semaphore_set *set, int number, int limit)
{
    struct sembuf operations[OPERATIONS];
    int count = 0, room = VALUE_MAXIMUM - set->values[number];
    if (room > 0)
        operations[count++] = (struct sembuf){ (unsigned short)number, (short)room, IPC_NOWAIT };
    operations[count++] = (struct sembuf){ (unsigned short)number, (short)(limit - VALUE_MAXIMUM), IPC_NOWAIT | SEM_UNDO };
    return ask_operations(query, set->identity.id, operations, count, number);
}

/* The other way round, in two steps since the range below zero is larger by one than the largest value. */
static int ask_below(struct query *query, const struct semaphore_set *set, int number, int limit)
{
    struct sembuf operations[OPERATIONS];
    int count = 0, step = VALUE_MAXIMUM - limit;
    if (set->values[number] > 0)
        operations[count++] = (struct sembuf){ (unsigned short)number, (short)-set->values[number], IPC_NOWAIT };
    operations[count++] = (struct sembuf){ (unsigned short)number, (short)step, IPC_NOWAIT | SEM_UNDO };
    operations[count++] = (struct sembuf){ (unsigned short)number, (short)-step, IPC_NOWAIT };
    operations[count++] = (struct sembuf){ (unsigned short)number, 1, IPC_NOWAIT | SEM_UNDO };
    return ask_operations(query, set->identity.id, operations, count, number);
}

/*
 * Every program with threads has a list, so a process is asked about each semaphore only where these are few. Else about those that it was the last to
 * change: who has taken one that others want is.
 */
static bool worth_asking(const struct process *process, const struct semaphore_set *set, int number)
{
    const struct namespace *here = process->namespaces[NAMESPACE_IPC];      /* whoever leaves one loses his adjustments */
    if (set->identity.where != here)
        return false;
    /* Nobody has adjustments on a set that was never used; asking would have its sem_otime set when the process ends. */
    return set->used && (sysv_semaphore_count(here) <= FEW_SEMAPHORES || set->pids[number] == process->ns_pid);
}

static void ask_about(struct query *query, struct undo_memo *undo, int index, int number)
{
    const struct semaphore_set *set = sysv_semaphore_set(index);
    struct probe *probe = &undo->probes[undo->count++];
    probe->set = index;
    probe->number = number;
    for (int limit = 0; limit <= FARTHEST; limit++) {
        probe->above[limit] = ask_above(query, set, number, limit);
        probe->below[limit] = ask_below(query, set, number, limit);
    }
}

static int undo_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    const struct process *process = query_thread(query)->process;
    if (sysv_semaphore_count(process->namespaces[NAMESPACE_IPC]) == 0 || !query_is_leader(query) || !has_list(process))
        return 0;
    struct undo_memo *undo = *memo = must_alloc(sizeof *undo);
    for (int i = 0; i < sysv_semaphore_set_count(); i++) {
        const struct semaphore_set *set = sysv_semaphore_set(i);
        for (int number = 0; number < set->count && undo->count < MAX_SEMAPHORES; number++)
            if (worth_asking(process, set, number))
                ask_about(query, undo, i, number);
    }
    return 0;
}

/* How many limits the adjustment lies beyond: one more than FARTHEST when it cannot be told. */
static int beyond(const struct query *query, const int *ops)
{
    int distance = 0;
    while (distance <= FARTHEST && query_result(query, ops[distance]) == -ERANGE)
        distance++;
    return distance;
}

static int undo_collect(struct query *query, void *memo, struct error *err)
{
    const struct process *process = query_thread(query)->process;
    const struct undo_memo *undo = memo;
    for (int i = 0; undo && i < undo->count; i++) {
        const struct probe *probe = &undo->probes[i];
        int id = sysv_semaphore_set(probe->set)->identity.id, adjustment = beyond(query, probe->above) - beyond(query, probe->below);
        if (adjustment > FARTHEST || adjustment < -FARTHEST)
            return fail(err, "unsupported", "%s has a SEM_UNDO adjustment of more than %d on the semaphore set %d; let it finish what it does, or end "
                        "it", process_label(process), FARTHEST, id);
        if (adjustment == 0)
            continue;
        entries = must_grow(entries, (size_t)(entry_count + 1) * sizeof *entries);
        entries[entry_count++] = (struct undo_entry){ process, id, probe->number, adjustment };
    }
    return 0;
}

/* One step up and one down, of which only one is to be undone: the value stays. The way up comes first, so that nothing blocks. */
static int undo_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    if (thread != &thread->process->threads[0])
        return 0;
    for (int i = 0; i < entry_count; i++) {
        const struct undo_entry *entry = &entries[i];
        if (entry->process != thread->process)
            continue;
        short size = (short)(entry->adjustment > 0 ? entry->adjustment : -entry->adjustment);
        struct sembuf operations[] = {
            { (unsigned short)entry->number, size, (short)(IPC_NOWAIT | (entry->adjustment < 0 ? SEM_UNDO : 0)) },
            { (unsigned short)entry->number, (short)-size, (short)(IPC_NOWAIT | (entry->adjustment > 0 ? SEM_UNDO : 0)) },
        };
        EMIT(batch, "a System V semaphore", SYS_semop, (uint64_t)entry->id, plan_data(batch->plan, operations, sizeof operations), 2);
    }
    return 0;
}

const struct part part_semaphore_undo = { .name = "semaphore adjustments", .ask = undo_ask, .collect = undo_collect, .emit = undo_emit };
