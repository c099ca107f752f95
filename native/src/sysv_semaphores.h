/* The semaphore sets of the source, for those who ask its processes about them. */
#ifndef TCLONE_SYSV_SEMAPHORES_H
#define TCLONE_SYSV_SEMAPHORES_H

#include "sysv.h"

struct semaphore_set {
    struct sysv_identity identity;
    int count;
    bool used;                  /* sem_otime is set: initialised, as programs see it */
    unsigned short *values;
    int *pids;                  /* workspace numbering; 0 = nobody who lives */
};

int sysv_semaphore_set_count(void);
const struct semaphore_set *sysv_semaphore_set(int index);

#endif
