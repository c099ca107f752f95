/*
 * System V semaphores: values, and the last process to have changed each. The adjustments that a process has asked for with SEM_UNDO are
 * found by parts/semaphore_undo.c. sem_otime becomes the time of the fork: programs only ask whether it is zero (not initialised yet).
 */
#include "ipc_namespaces.h"
#include "sysv.h"
#include "sysv_semaphores.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sem.h>
#include <sys/syscall.h>

#ifndef SEM_STAT_ANY
#define SEM_STAT_ANY 20
#endif

static struct semaphore_set *sets;
static int set_count;

int sysv_semaphore_count(const struct namespace *where)
{
    int count = 0;
    for (int i = 0; i < set_count; i++)
        if (sets[i].identity.where == where)
            count += sets[i].count;
    return count;
}

int sysv_semaphore_set_count(void)
{
    return set_count;
}

const struct semaphore_set *sysv_semaphore_set(int index)
{
    return &sets[index];
}

static int ns_pid_of(const struct world *world, int host_pid)
{
    for (int i = 0; i < world->process_count; i++)
        if (world->processes[i]->group_leader == host_pid)
            return world->processes[i]->ns_pid;
    return 0;
}

static int read_set(const struct world *world, const struct namespace *where, int id, const struct semid_ds *state, struct error *err)
{
    struct semaphore_set set = { .identity = sysv_identity(where, id, &state->sem_perm), .count = (int)state->sem_nsems, .used = state->sem_otime != 0 };
    set.values = must_alloc((size_t)set.count * sizeof *set.values);
    set.pids = must_alloc((size_t)set.count * sizeof *set.pids);
    if (semctl(id, 0, GETALL, set.values) < 0)
        return fail_errno(err, "cannot read the semaphore set %d", id);
    for (int i = 0; i < set.count; i++) {
        int pid = semctl(id, i, GETPID);
        set.pids[i] = pid > 0 ? ns_pid_of(world, pid) : 0;
    }
    sets = must_grow(sets, (size_t)(set_count + 1) * sizeof set);
    sets[set_count++] = set;
    return 0;
}

static int read_sets(struct world *world, const struct namespace *where, struct error *err)
{
    struct seminfo info;
    int highest = semctl(0, 0, SEM_INFO, &info);
    for (int i = 0; i <= highest; i++) {
        struct semid_ds state;
        int id = semctl(i, 0, SEM_STAT_ANY, &state);
        if (id >= 0 && read_set(world, where, id, &state, err) < 0)
            return -1;
    }
    return 0;
}

int sysv_semaphores_read(struct world *world, struct error *err)
{
    return ipc_each(world, read_sets, err);
}

/* Waiting for a semaphore that is zero anyway changes nothing but sem_otime. */
static int fill_set(const struct semaphore_set *set, struct error *err)
{
    struct sembuf nothing = { 0, 0, IPC_NOWAIT };
    struct semid_ds state;
    int id = set->identity.id;
    if (set->used && semop(id, &nothing, 1) < 0)
        return fail_errno(err, "cannot use the semaphore set %d of the branch", id);
    if (semctl(id, 0, SETALL, set->values) < 0)
        return fail_errno(err, "cannot set the values of the semaphore set %d", id);
    if (semctl(id, 0, IPC_STAT, &state) < 0)
        return fail_errno(err, "cannot look at the semaphore set %d of the branch", id);
    state.sem_perm.uid = set->identity.uid;
    state.sem_perm.gid = set->identity.gid;
    if (semctl(id, 0, IPC_SET, &state) < 0)
        return fail_errno(err, "cannot set the owner of the semaphore set %d", id);
    return 0;
}

static int make_set(const struct semaphore_set *set, struct error *err)
{
    const struct sysv_identity *identity = &set->identity;
    if (sysv_choose_id("sem_next_id", identity->id, err) < 0 || sysv_act_as(identity->creator_uid, identity->creator_gid, err) < 0)
        return -1;
    int id = semget(identity->key, set->count, IPC_CREAT | IPC_EXCL | (int)identity->mode), number = errno;
    if (sysv_act_as(0, 0, err) < 0)
        return -1;
    errno = number;
    if (id != identity->id)
        return fail_errno(err, "the semaphore set %d got the id %d", identity->id, id);
    return fill_set(set, err);
}

int sysv_semaphores_make(const struct namespace *where, struct error *err)
{
    for (int i = 0; i < set_count; i++)
        if (sets[i].identity.where == where && make_set(&sets[i], err) < 0)
            return -1;
    return 0;
}

void sysv_semaphores_emit(struct plan *plan)
{
    for (int i = 0; i < set_count; i++) {
        const struct semaphore_set *set = &sets[i];
        for (int k = 0; k < set->count; k++) {
            if (!set->pids[k])
                continue;
            struct batch *batch = set->pids[k] == 1 ? &plan->common[STAGE_MAKE] : plan_creator(plan, STAGE_MAKE, set->pids[k], 0, 0);
            ipc_emit_enter(batch, set->identity.where);
            EMIT(batch, "a System V semaphore", SYS_semctl, (uint64_t)set->identity.id, (uint64_t)k, SETVAL, set->values[k]);
            ipc_emit_leave(batch, set->identity.where);
        }
    }
}
