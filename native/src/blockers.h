/* What preflight found: things that cannot be forked (blockers), or that a branch will not have (warnings). */
#ifndef TCLONE_BLOCKERS_H
#define TCLONE_BLOCKERS_H

#include "world.h"

struct blocker {
    int pid;                    /* in the workspace's numbering; 0 = the workspace as a whole */
    int fd;                     /* -1 = not a descriptor */
    char command[32];           /* the process' name: its arguments lie in its memory, where reading can be made to block */
    char *message;              /* "WHO WHAT; REMEDY" */
    const char *remedy;         /* the part of message behind the first "; " after WHO, or "" */
};

/* At most MAX_BLOCKERS are kept, each message once; a hostile workspace can have as many as it has descriptors. */
#define MAX_BLOCKERS 1000

struct blockers {
    struct blocker *items;
    int count;
    int omitted;
};

/* `process` NULL = the workspace as a whole. */
void blockers_add(struct blockers *blockers, const struct process *process, int fd, const char *message);
/* One object {"pid","command","fd","message","remedy"}; numbers that do not apply are null. The caller frees it. */
char *blocker_json(const struct blocker *blocker);
void blockers_free(struct blockers *blockers);

#endif
