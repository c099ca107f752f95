/* POSIX message queues of the source's IPC namespaces, open or not, with their messages. */
#ifndef TCLONE_POSIX_QUEUES_H
#define TCLONE_POSIX_QUEUES_H

#include <mqueue.h>

#include "branch.h"
#include "world.h"

struct mqueue_message {
    char *data;
    size_t size;
    unsigned priority;
};

struct mqueue {
    const struct namespace *where;      /* IPC namespace */
    uint64_t device, inode;
    char *name;                 /* in a branch, without the slash */
    bool unlinked;              /* loses that name when it has been opened */
    struct mq_attr attributes;
    mode_t mode;
    uid_t uid;
    gid_t gid;
    struct mqueue_message *messages;
    int message_count;
};

/* Before the freeze: mount the file system of the workspace's own, which need not be mounted there (some 0.2 ms). */
int mqueue_prepare(struct world *world, struct error *err);
/* Make the file system of an IPC namespace made inside, where the process is the first seen, known to the search for FUSE servers. */
int mqueue_preflight(const struct process *process, struct error *err);
/* Every queue that has a name. */
int mqueue_read(struct world *world, struct error *err);
bool mqueue_lies_in(const struct namespace *where);
/* The queue behind a descriptor, which may have no name any more; NULL and err. */
struct mqueue *mqueue_of_description(const struct description *description, struct error *err);
/* Refuse a queue of which a process wants to be notified (mq_notify). */
int mqueue_check_notification(const struct description *description, struct error *err);
/* In one namespace of a branch, from outside: make them and fill them. */
int mqueue_make(struct branch *branch, const struct namespace *where, struct error *err);

#endif
