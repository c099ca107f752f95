/*
 * System V message queues. MSG_COPY reads a message and leaves it where it is (CONFIG_CHECKPOINT_RESTORE, which distributions set). Times and last
 * senders are new in a branch; who waits for a message or for room waits again by itself.
 */
#include "sysv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/msg.h>

#ifndef MSG_STAT_ANY
#define MSG_STAT_ANY 13
#endif
#ifndef MSG_COPY
#define MSG_COPY 040000
#endif

struct message_text {
    long type;
    char text[];
};

struct queued {
    struct message_text *message;
    size_t size;                /* of the text */
};

struct queue {
    struct sysv_identity identity;
    size_t bytes_limit;         /* msg_qbytes */
    struct queued *messages;
    int message_count;
};

static struct queue *queues;
static int queue_count;

int sysv_queue_count(const struct namespace *where)
{
    int count = 0;
    for (int i = 0; i < queue_count; i++)
        count += queues[i].identity.where == where;
    return count;
}

static int read_message(struct queue *queue, int index, size_t room, struct error *err)
{
    AUTO_FREE struct message_text *buffer = must_alloc(sizeof *buffer + room);
    ssize_t size = msgrcv(queue->identity.id, buffer, room, index, MSG_COPY | MSG_NOERROR | IPC_NOWAIT);
    if (size < 0 && errno == ENOSYS)
        return fail(err, "unsupported", "the message queue %d holds messages, and this kernel cannot copy them (CONFIG_CHECKPOINT_RESTORE); let their "
                    "receiver take them, or remove the queue (ipcrm -q %d)", queue->identity.id, queue->identity.id);
    if (size < 0)
        return fail_errno(err, "cannot copy message %d of the message queue %d", index, queue->identity.id);
    struct queued queued = { must_alloc(sizeof *buffer + (size_t)size), (size_t)size };
    memcpy(queued.message, buffer, sizeof *buffer + (size_t)size);
    queue->messages = must_grow(queue->messages, (size_t)(queue->message_count + 1) * sizeof queued);
    queue->messages[queue->message_count++] = queued;
    return 0;
}

static int read_queue(const struct namespace *where, int id, const struct msqid_ds *state, struct error *err)
{
    struct queue queue = { .identity = sysv_identity(where, id, &state->msg_perm), .bytes_limit = state->msg_qbytes };
    for (int i = 0; i < (int)state->msg_qnum; i++)
        if (read_message(&queue, i, state->__msg_cbytes, err) < 0)
            return -1;
    queues = must_grow(queues, (size_t)(queue_count + 1) * sizeof queue);
    queues[queue_count++] = queue;
    return 0;
}

int sysv_queues_read(const struct namespace *where, struct error *err)
{
    struct msginfo info;
    int highest = msgctl(0, MSG_INFO, (struct msqid_ds *)&info);
    for (int i = 0; i <= highest; i++) {
        struct msqid_ds state;
        int id = msgctl(i, MSG_STAT_ANY, &state);
        if (id >= 0 && read_queue(where, id, &state, err) < 0)
            return -1;
    }
    return 0;
}

/* A fresh queue may hold what the namespace's msgmnb says; a limit above it needs CAP_SYS_RESOURCE, so it is set only where it differs. */
static int set_owner(const struct queue *queue, struct error *err)
{
    const struct sysv_identity *identity = &queue->identity;
    struct msqid_ds state;
    if (msgctl(identity->id, IPC_STAT, &state) < 0)
        return fail_errno(err, "cannot look at the message queue %d of the branch", identity->id);
    bool differs = state.msg_qbytes != queue->bytes_limit || state.msg_perm.uid != identity->uid || state.msg_perm.gid != identity->gid;
    state.msg_perm.uid = identity->uid;
    state.msg_perm.gid = identity->gid;
    state.msg_qbytes = queue->bytes_limit;
    if (differs && msgctl(identity->id, IPC_SET, &state) < 0)
        return fail_errno(err, "cannot set the owner and the limit of %zu bytes of the message queue %d", queue->bytes_limit, identity->id);
    return 0;
}

static int make_queue(const struct queue *queue, struct error *err)
{
    const struct sysv_identity *identity = &queue->identity;
    if (sysv_choose_id("msg_next_id", identity->id, err) < 0 || sysv_act_as(identity->creator_uid, identity->creator_gid, err) < 0)
        return -1;
    int id = msgget(identity->key, IPC_CREAT | IPC_EXCL | (int)identity->mode), number = errno;
    if (sysv_act_as(0, 0, err) < 0)
        return -1;
    errno = number;
    if (id != identity->id)
        return fail_errno(err, "the message queue %d got the id %d", identity->id, id);
    if (set_owner(queue, err) < 0)
        return -1;
    for (int i = 0; i < queue->message_count; i++)
        if (msgsnd(id, queue->messages[i].message, queue->messages[i].size, IPC_NOWAIT) < 0)
            return fail_errno(err, "cannot fill the message queue %d", id);
    return 0;
}

int sysv_queues_make(const struct namespace *where, struct error *err)
{
    for (int i = 0; i < queue_count; i++)
        if (queues[i].identity.where == where && make_queue(&queues[i], err) < 0)
            return -1;
    return 0;
}
