/* One branch under construction. */
#ifndef TCLONE_BRANCH_H
#define TCLONE_BRANCH_H

#include <sys/types.h>

#include "error.h"
#include "plan.h"

/* How many hierarchies of cgroups a host may have: v1 has some 15 controllers. */
#define BRANCH_HIERARCHIES 32

struct branch {
    const char *id;
    int socket;                 /* to its tclone-restore */
    pid_t init;                 /* host pid of tclone-restore */
    int init_pidfd;
    int root;                   /* detached mount of its root file system; -1 until the engine sent it */
    int ipc_ns;
    int *nested_ipc;            /* those made inside, by namespace index, -1 = not needed; NULL while none is (ipc_namespaces.c) */
    int arena;                  /* memfd */
    char *arena_local;
    pid_t *pids;                /* host pids, by process index */
    int *memory;                /* /proc/PID/mem, by process index */
    int *userfaultfds;          /* by process index, -1 = none */
    int *objects;               /* descriptors of shared objects, by index */
    int cgroups[BRANCH_HIERARCHIES];    /* its own group, by hierarchy (cgroups.c) */
    pid_t service;              /* our helper in its pid namespace (namespace_service.c); 0 = none */
    struct error err;           /* why it failed; err.code set = failed */
};

/* Queue a descriptor that tclone-restore shall have at number `slot` (rebuild.c sends them in order); takes fd over. */
void branch_give(struct branch *branch, uint64_t slot, int fd);

#endif
