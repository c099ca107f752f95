/* System V shared memory, semaphores and message queues of the source's IPC namespaces. */
#ifndef TCLONE_SYSV_H
#define TCLONE_SYSV_H

#include <sys/ipc.h>

#include "shared.h"

/* Segments, attached or not, and message queues. */
int sysv_read(struct world *world, struct error *err);
/* Does anything lie in this namespace? */
bool sysv_lies_in(const struct world *world, const struct namespace *where);
/* In one namespace of a branch: make them, segments open like other shared objects, which are filled; semaphores and queues with their content. */
int sysv_make(struct world *world, struct branch *branch, const struct namespace *where, struct error *err);
/* Lock what was locked, mark removed what was: the branch's processes have it attached by now. */
int sysv_finish(struct world *world, struct branch *branch, struct error *err);

/* ---- sysv_queues.c: both need no help but this thread being in the right IPC namespace (where) ---- */

/* Whose an object is, and under which id and key it is known. */
struct sysv_identity {
    const struct namespace *where;
    int id, key;
    mode_t mode;
    uid_t uid, creator_uid;
    gid_t gid, creator_gid;
};
struct sysv_identity sysv_identity(const struct namespace *where, int id, const struct ipc_perm *perm);

/* Message queues: read, with every message, and make again. */
int sysv_queues_read(const struct namespace *where, struct error *err);
int sysv_queues_make(const struct namespace *where, struct error *err);
int sysv_queue_count(const struct namespace *where);

/* ---- sysv_semaphores.c ---- */

/* Must come before the processes are asked, since only they can be asked for their SEM_UNDO adjustments. */
int sysv_semaphores_read(struct world *world, struct error *err);
int sysv_semaphores_make(const struct namespace *where, struct error *err);
int sysv_semaphore_count(const struct namespace *where);
/* The last process to have changed each semaphore. */
void sysv_semaphores_emit(struct plan *plan);

/* ---- for the three of them ---- */

/* Go on in the IPC namespace `ns`, and back to the one that this function returned as *home. */
int sysv_enter(int ns, int *home, struct error *err);
int sysv_leave(int home, struct error *err);
/* The next object made by the same syscall gets this id: `file` is shm_next_id, sem_next_id or msg_next_id. */
int sysv_choose_id(const char *file, int id, struct error *err);
/* Make objects as this user, who is then recorded as their creator; 0, 0 = root again. */
int sysv_act_as(uid_t uid, gid_t gid, struct error *err);

#endif
