/* Unix sockets as sock_diag(7) lists them in a network namespace, and a small index to find things by bytes. */
#ifndef TCLONE_SOCK_DIAG_H
#define TCLONE_SOCK_DIAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../error.h"

struct unix_diag {
    uint32_t inode;
    uint8_t type, state, shutdown;      /* SOCK_*, TCP_* state, RCV_SHUTDOWN | SEND_SHUTDOWN */
    bool has_peer, has_file;
    uint32_t peer;                      /* inode; 0 = the peer is not accepted yet, or closed */
    uint32_t file_inode, file_device;   /* low 32 bits of the bound file's inode; device as the kernel writes it (major << 20 | minor) */
    uint32_t unread, limit;             /* bytes unread, or for a listener: pending connections; limit = its backlog */
    uint32_t *pending;                  /* for a listener: inodes of the connecting sockets in order, 0 = closed meanwhile */
    int pending_count;
};

/* Open a sock_diag socket inside the network namespace `net_ns`; this thread is back in its own afterwards. */
int sock_diag_open(int net_ns, struct error *err);
/* List all unix sockets there. The array (and each `pending`) belongs to the caller. Returns the count. */
int sock_diag_list(int socket, struct unix_diag **list, struct error *err);

/* Does a TCP listener there (its sock_diag socket) have connections that it has not accepted? (inet_diag.c) */
int inet_diag_unaccepted(int socket, struct error *err);

/* Bytes -> item. Keys are not copied. */
struct byte_index {
    struct byte_index_entry { const void *key; size_t length; void *item; } *entries;
    size_t capacity, count;
};
void *byte_index_find(const struct byte_index *index, const void *key, size_t length);
/* Replaces an item with the same key. */
void byte_index_put(struct byte_index *index, const void *key, size_t length, void *item);

#endif
