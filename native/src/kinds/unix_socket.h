/*
 * Unix sockets: what is known of each, and how they belong together.
 *
 *   unix.c           the kind; reads each socket while the source is frozen
 *   unix_queue.c     unread messages, with the descriptors and credentials in them
 *   unix_place.c     where the file of a bound path is, and binding to it again
 *   unix_pids.c      the workspace's numbers of processes that have ended (SO_PEERCRED)
 *   unix_link.c      who is connected to whom, and by which listener
 *   unix_emit.c      ops that make, bind and connect them
 *   unix_fill.c      ops that fill queues and half-close
 */
#ifndef TCLONE_UNIX_SOCKET_H
#define TCLONE_UNIX_SOCKET_H

#include <sys/socket.h>
#include <sys/un.h>

#include "sock_diag.h"
#include "sock_options.h"

#define NAME_MAXIMUM 112        /* a path of 108 bytes is reported with its NUL: 2 + 108 + 1 */

struct unix_name {
    socklen_t length;           /* of the address; 2 or less = no name */
    char address[NAME_MAXIMUM];
};

/* Supplementary groups of the peer (SO_PEERGROUPS); message buses decide by them. */
struct unix_groups {
    gid_t *list;
    int count;
};

struct unix_message {
    char *data;
    size_t size;
    bool urgent;                /* MSG_OOB; one byte */
    struct description **descriptors;
    int descriptor_count;
    bool has_credentials;
    struct ucred credentials;   /* in the workspace's numbering; pid 0 = not one of its processes any more */
    struct unix_name sender;    /* datagrams only */
};

/* The file of a path name. */
struct mount_world;             /* mounts.h */

struct unix_place {
    const struct mount_world *mounts;   /* where the path leads to it; NULL = the workspace's own mounts */
    bool in_place;              /* base + name still leads to it */
    bool lost;                  /* its directory is gone: it gets an abstract name of the kernel's choice */
    char *base;                 /* directory a relative name counts from; NULL for absolute ones */
    char *root;                 /* directory that was its process' root when it was bound, and is now; NULL = the workspace's */
    char *path;                 /* root or base + name, absolute */
    char *alias;                /* where it is kept while a branch is made, unless in_place */
    uint64_t address, address_length;   /* lost: arena addresses of the substitute name and its length */
    mode_t mode;
    uid_t uid;
    gid_t gid;
};

struct unix_socket {
    struct description *description;
    char *label;
    struct unix_diag diag;
    int type;                   /* SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM */
    bool listening, has_error;
    struct unix_name name, peer_name;
    struct ucred peer_credentials;      /* pid in the workspace's numbering, 0 = unknown */
    struct unix_groups peer_groups;
    int unresolved_pid;         /* the host's, of a process that is not in the world */
    struct socket_options options;
    const struct namespace *net;        /* NULL = the workspace's own */
    struct unix_place *place;
    struct unix_message *messages;
    int message_count;
    struct unix_socket *peer;   /* in the world */
    struct unix_connection *connection;
    struct unix_listener *listener;     /* for a listening one */
    struct unix_socket *first_client, *next_client;     /* datagram sockets connected to this one */
    bool visited, joined, filled;
    int aux;                    /* datagram sockets whose peer is gone: slot of a stand-in, else -1 */
};

/* Something to connect to: a listening socket of the world, or a temporary one that stands for one that is gone. */
struct unix_listener {
    struct unix_socket *socket; /* NULL = temporary, at an auxiliary slot */
    const struct unix_name *name;
    struct unix_place *place;
    int type;
    const struct namespace *net;
    struct ucred credentials;   /* of who calls listen */
    struct unix_groups groups;
    const char *label;
    int aux;
};

struct unix_connection {
    struct unix_socket *connector, *acceptor;   /* NULL = closed, or outside the workspace */
    struct unix_listener *listener;             /* NULL = both ends come from socketpair */
    struct ucred credentials;   /* of who calls connect or socketpair */
    struct unix_groups groups;
    bool pending;               /* not accepted yet */
    struct unix_message *early; /* what the client of a pending one has sent (unix_early.h) */
    int early_count;
    int aux;                    /* slot of the absent end */
    const char *label;
};

struct unix_table {
    struct unix_socket **sockets;
    int count;
    struct unix_connection **connections;
    int connection_count;
    struct unix_listener **temporary;
    int temporary_count;
    int nobody_aux;             /* slot of the socket that sends for senders who are gone */
    struct byte_index by_inode, diag_by_inode, listeners, named;
};

bool unix_is_path(const struct unix_name *name);
bool unix_is_named(const struct unix_name *name);
/* Abstract names count within one network namespace, paths everywhere: a number for keys. */
int unix_name_scope(const struct unix_name *name, const struct namespace *net);
bool unix_same_name(const struct unix_name *a, const struct unix_name *b);

int unix_queue_read(struct world *world, struct unix_socket *socket, struct error *err);
struct unix_place *unix_place_find(struct world *world, const struct unix_socket *socket);
/* A place for a temporary listener with a path name that nobody in the world is bound to. */
struct unix_place *unix_place_temporary(struct world *world, const struct unix_name *name, int number);
/* bind(fd, name), leaving whatever else has that name by now in its place. */
void unix_place_bind(struct batch *batch, struct unix_place *place, const struct unix_name *name, uint64_t fd, const char *what);
/* connect(fd), also when the name does not lead there any more. */
void unix_place_connect(struct batch *batch, const struct unix_place *place, const struct unix_name *name, uint64_t fd, const char *what);
/* The address by which a datagram can be sent there from a process in "/": 0 when only a relative name would do. */
uint64_t unix_place_address(struct plan *plan, const struct unix_place *place, const struct unix_name *name, socklen_t *length);
/* Mode and owner; removes the aliases. */
void unix_place_finish(struct batch *batch, const struct unix_place *place, const char *what);

int unix_pid_in_workspace(const struct world *world, int host_pid);
int unix_pids_resolve(struct world *world, struct unix_table *table, struct error *err);
/* The datagram socket that has this name there. */
struct unix_socket *unix_find_named(const struct unix_table *table, const struct unix_name *name, const struct namespace *net);
int unix_link(struct world *world, struct error *err);

int unix_emit_make(struct plan *plan, struct unix_table *table, struct error *err);
int unix_emit_connect(struct plan *plan, struct unix_table *table, struct error *err);
void unix_emit_finish(struct plan *plan, struct unix_table *table);
void unix_emit_fill(struct plan *plan, struct unix_table *table);
/* The messages of a datagram socket that is not connected both ways. */
void unix_fill_datagrams(struct plan *plan, struct unix_table *table, struct unix_socket *socket, struct batch *batch);

bool unix_peer_is_gone(const struct unix_socket *socket);     /* datagram sockets */
uint64_t unix_connector_fd(struct plan *plan, const struct unix_connection *connection);
uint64_t unix_acceptor_fd(struct plan *plan, const struct unix_connection *connection);
void unix_emit_socket(struct batch *batch, const struct namespace *net, int type, uint64_t slot, const char *what);
void unix_emit_bind(struct batch *batch, const struct unix_socket *socket);
void unix_emit_settings(struct batch *batch, const struct unix_socket *socket);

#endif
