#include "sock_diag.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECEIVE_SIZE 65536

int sock_diag_open(int net_ns, struct error *err)
{
    AUTO_CLOSE int own = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
    if (own < 0)
        return fail_errno(err, "cannot open the own network namespace");
    if (setns(net_ns, CLONE_NEWNET) < 0)
        return fail_errno(err, "cannot enter the source's network namespace");
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    int number = errno;
    if (setns(own, CLONE_NEWNET) < 0)
        return fail_errno(err, "cannot return to the own network namespace");
    errno = number;
    if (fd < 0)
        return fail_errno(err, "cannot open a sock_diag socket");
    return fd;
}

static int send_request(int fd, struct error *err)
{
    struct {
        struct nlmsghdr header;
        struct unix_diag_req body;
    } request = {
        .header = { .nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
        .body = { .sdiag_family = AF_UNIX, .udiag_states = ~0u,
                  .udiag_show = UDIAG_SHOW_VFS | UDIAG_SHOW_PEER | UDIAG_SHOW_ICONS | UDIAG_SHOW_RQLEN },
    };
    if (send(fd, &request, sizeof request, 0) != (ssize_t)sizeof request)
        return fail_errno(err, "sock_diag does not take the request for unix sockets");
    return 0;
}

static void take_attribute(struct unix_diag *socket, const struct rtattr *attribute)
{
    const void *data = RTA_DATA(attribute);
    size_t length = RTA_PAYLOAD(attribute);
    switch (attribute->rta_type) {
    case UNIX_DIAG_VFS: {
        const struct unix_diag_vfs *file = data;
        socket->has_file = true;
        socket->file_inode = file->udiag_vfs_ino;
        socket->file_device = file->udiag_vfs_dev;
        break;
    }
    case UNIX_DIAG_PEER:
        socket->has_peer = true;
        socket->peer = *(const uint32_t *)data;
        break;
    case UNIX_DIAG_ICONS:
        socket->pending = must_alloc(length);
        memcpy(socket->pending, data, length);
        socket->pending_count = (int)(length / sizeof(uint32_t));
        break;
    case UNIX_DIAG_RQLEN: {
        const struct unix_diag_rqlen *queue = data;
        socket->unread = queue->udiag_rqueue;
        socket->limit = queue->udiag_wqueue;
        break;
    }
    case UNIX_DIAG_SHUTDOWN:
        socket->shutdown = *(const uint8_t *)data;
        break;
    default:
        break;
    }
}

static void take_socket(struct unix_diag *socket, const struct nlmsghdr *header)
{
    const struct unix_diag_msg *message = NLMSG_DATA(header);
    *socket = (struct unix_diag){ .inode = message->udiag_ino, .type = message->udiag_type, .state = message->udiag_state };
    const struct rtattr *attribute = (const struct rtattr *)(message + 1);
    size_t left = header->nlmsg_len - NLMSG_LENGTH(sizeof *message);
    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left))
        take_attribute(socket, attribute);
}

int sock_diag_list(int fd, struct unix_diag **list, struct error *err)
{
    if (send_request(fd, err) < 0)
        return -1;
    int count = 0, capacity = 0;
    AUTO_FREE char *buffer = must_buffer(RECEIVE_SIZE);
    *list = NULL;
    for (;;) {
        ssize_t got = recv(fd, buffer, RECEIVE_SIZE, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fail_errno(err, "cannot receive the list of unix sockets");
        size_t left = (size_t)got;
        for (const struct nlmsghdr *header = (const void *)buffer; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_type == NLMSG_DONE)
                return count;
            if (header->nlmsg_type == NLMSG_ERROR) {
                errno = -((const struct nlmsgerr *)NLMSG_DATA(header))->error;
                return fail_errno(err, "sock_diag cannot list unix sockets");
            }
            if (count == capacity) {
                capacity = capacity ? capacity * 2 : 256;
                *list = must_grow(*list, (size_t)capacity * sizeof **list);
            }
            take_socket(&(*list)[count++], header);
        }
    }
}

/* ---- index: open addressing, at most half full ---- */

static uint64_t hash_bytes(const void *key, size_t length)
{
    const unsigned char *bytes = key;
    uint64_t hash = 0xcbf29ce484222325u;        /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash ^ hash >> 29;
}

static struct byte_index_entry *place_of(const struct byte_index *index, const void *key, size_t length)
{
    for (size_t at = hash_bytes(key, length) % index->capacity;; at = (at + 1) % index->capacity) {
        struct byte_index_entry *entry = &index->entries[at];
        if (!entry->key || (entry->length == length && memcmp(entry->key, key, length) == 0))
            return entry;
    }
}

void *byte_index_find(const struct byte_index *index, const void *key, size_t length)
{
    return index->capacity ? place_of(index, key, length)->item : NULL;
}

void byte_index_put(struct byte_index *index, const void *key, size_t length, void *item)
{
    if ((index->count + 1) * 2 > index->capacity) {
        struct byte_index old = *index;
        index->capacity = old.capacity ? old.capacity * 2 : 64;
        index->entries = must_alloc(index->capacity * sizeof *index->entries);
        for (size_t i = 0; i < old.capacity; i++)
            if (old.entries[i].key)
                *place_of(index, old.entries[i].key, old.entries[i].length) = old.entries[i];
        free(old.entries);
    }
    struct byte_index_entry *entry = place_of(index, key, length);
    index->count += entry->key == NULL;
    *entry = (struct byte_index_entry){ key, length, item };
}
