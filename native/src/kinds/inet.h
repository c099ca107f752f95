/*
 * Sockets of the internet families.
 *
 *   inet.c           the kind: what is read of every one, unconnected and datagram sockets
 *   inet_options.c   which options are read
 *   inet_diag.c      what sock_diag(7) tells of sockets that no process has a descriptor of
 *   tcp_link.c       what becomes of each stream: who its peer is
 *   tcp_queue.c      unread and undelivered bytes
 *   tcp_emit.c       ops that make streams again
 *   tcp_alone.c      ops that make streams whose other end is gone
 *   udp_queue.c      unread datagrams
 *   multicast.c      memberships
 *   raw_peer.c       where a raw socket is connected to
 */
#ifndef TCLONE_INET_H
#define TCLONE_INET_H

#include "../plan.h"
#include "sock_options.h"

#include <netinet/in.h>
#include <sys/socket.h>

/* The kernel's numbers (net/tcp_states.h); <netinet/tcp.h> has them too, but cannot be had together with <linux/tcp.h>. */
enum stream_state {
    STREAM_ESTABLISHED = 1, STREAM_SYN_SENT, STREAM_SYN_RECV, STREAM_FIN_WAIT1, STREAM_FIN_WAIT2, STREAM_TIME_WAIT, STREAM_CLOSE,
    STREAM_CLOSE_WAIT, STREAM_LAST_ACK, STREAM_LISTEN, STREAM_CLOSING,
};

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

union inet_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

/* What becomes of a stream in a branch. */
enum stream_role {
    ROLE_UNCONNECTED,           /* never connected, or listening: made as it is */
    ROLE_PAIR,                  /* both ends belong to the workspace: kept */
    ROLE_WIDOWED,               /* its peer was closed by a process of the workspace: kept, at the end of what it had sent */
    ROLE_WAITING,               /* connected to a listener of the workspace that has not accepted it: connects anew */
    ROLE_CONNECTING,            /* SYN_SENT: connects anew */
    ROLE_ENDED,                 /* its other end is outside, or it has ended already */
};

/* How a stream with ROLE_ENDED ends, after its unread bytes. */
enum stream_end {
    END_RESET,                  /* ECONNRESET */
    END_CLOSED,                 /* end of file, and writing fails: both sides have said goodbye */
    END_REFUSED,                /* ECONNREFUSED: it never came to a connection */
};

struct stream_bytes {
    char *data;
    size_t size;
    int64_t urgent_at;          /* position of a byte sent as urgent and not read yet (it is not in `data`), or -1 */
    char urgent_byte;
};

/* Everything about a stream that goes beyond an internet socket. */
struct stream {
    enum stream_role role;
    enum stream_end end;
    int state, backlog;
    bool error_pending;         /* POLLERR: the next call reports it */
    bool read_shut;             /* shutdown(SHUT_RD), or the peer's end of file */
    bool never_sent;            /* it never came to an answer from the other end */
    bool urgent;                /* POLLPRI */
    bool offloaded;             /* TLS in the kernel: the bytes on the wire are not those that the programs see */
    uint32_t options;           /* TCPI_OPT_* that were agreed on */
    uint32_t send_scale, receive_scale, own_mss, send_window;
    uint32_t sequence;          /* of the first byte it sends in a branch */
    uint64_t written, received; /* bytes so far */
    struct stream_bytes unread;
    char *undelivered;          /* written, not with the peer yet */
    size_t undelivered_size;
    struct inet_socket *mate;
    bool shares_port;           /* with another unconnected stream: at least one of them may have lost the option that allowed it */
    bool real_names;            /* ROLE_ENDED: its own addresses can be used again */
    int aux;                    /* slot of a stand-in for the peer, or -1 */
};

struct datagram {
    union inet_address from;
    union { struct in_addr v4; struct in6_addr v6; } to;    /* the address it was sent to, if the socket asks for it */
    bool to_known;
    char *data;
    size_t size;
};

struct membership {
    unsigned interface;
    bool all_but;               /* sources are those that are blocked; otherwise those that are joined */
    struct sockaddr_storage group, *sources;
    int source_count;
};

struct inet_socket {
    struct description *description;
    const char *label;
    int domain, type, protocol;
    uint64_t namespace;         /* cookie of its network namespace */
    const struct namespace *net;    /* NULL = the workspace's own */
    union inet_address local, peer;
    socklen_t local_size, peer_size;    /* peer_size 0 = not connected; of a stream also the one it was connected to, or is connecting to */
    struct socket_options options;
    struct stream *stream;
    struct datagram *datagrams;
    int datagram_count;
    struct membership *memberships;
    int membership_count;
    int shut_down;              /* UDP: SHUT_RD + 1, SHUT_WR + 1, or both */
};

struct inet_table {
    struct inet_socket **streams;
    int count;
};

/* ---- inet.c ---- */
bool inet_has_port(const union inet_address *address);
/* Make a socket in a network namespace (NULL: the workspace's) and put it at `slot`, owned by whoever owns the description's. */
void inet_emit_socket(struct batch *batch, const struct description *description, const struct namespace *net, int domain, int type, int protocol,
                      uint64_t slot, const char *what);
/* bind, also to an address that cannot be used yet. */
void inet_emit_bind(struct batch *batch, const struct inet_socket *socket, uint64_t slot, const union inet_address *address);
/* 127.0.0.1 or ::1, port 0, in the form that this socket takes. Returns its size. */
socklen_t inet_loopback(const struct inet_socket *socket, union inet_address *address);

/* ---- inet_options.c ---- */
int inet_options_read(struct inet_socket *socket, struct error *err);
/* Those that have to be there before bind and connect; then, when the queues are filled, the others and the packet filter. */
void inet_options_emit_first(struct batch *batch, const struct inet_socket *socket, uint64_t slot);
void inet_options_emit_last(struct batch *batch, const struct inet_socket *socket, uint64_t slot);
/* SO_BINDTODEVICE: before bind, but after what comes through `lo` whatever the device. */
void inet_options_emit_device(struct batch *batch, const struct inet_socket *socket, uint64_t slot);
/* SO_REUSEADDR and SO_REUSEPORT as they were: repair mode changes the first. */
void inet_options_emit_reuse(struct batch *batch, const struct inet_socket *socket, uint64_t slot);
/* Buffer sizes, and whether the kernel may still change them. */
void inet_options_emit_buffers(struct batch *batch, const struct inet_socket *socket, uint64_t slot);

/* ---- inet_diag.c ---- */
struct inet_found {
    int state;                  /* 0 = there is no such socket */
    uint32_t inode;             /* 0 = no descriptor refers to it */
    uint32_t unsent;            /* bytes not acknowledged by its peer, a FIN included */
};
/* The other end of a connection, if it is in the same network namespace. */
int inet_diag_mirror(struct world *world, const struct inet_socket *socket, struct inet_found *found, struct error *err);
/* Which directions of a UDP socket were shut down: 1 = receiving, 2 = sending. */
int inet_diag_shutdown(struct world *world, struct inet_socket *socket, struct error *err);

/* ---- streams ---- */
int stream_read(struct inet_socket *socket, struct error *err);
int stream_link(struct world *world, struct error *err);
/* Whether it, or its peer, has sent an end of file. */
bool stream_sent_end(const struct stream *stream);
bool stream_received_end(const struct stream *stream);
/* Count again what was written and received. */
int stream_count(struct inet_socket *socket, struct error *err);
/* Count bytes of queues; fails with "limit" when they are too many for a fork. */
int inet_account(const struct inet_socket *socket, size_t size, struct error *err);
/* Read the bytes that wait in a socket's queue; they stay there. */
int stream_read_unread(struct inet_socket *socket, struct error *err);
/* What goes from one end of a pair to the other. Returns 1; 0 if it cannot be told exactly. */
int stream_read_direction(struct inet_socket *from, struct inet_socket *to, struct error *err);

void stream_emit(struct plan *plan, struct inet_socket *socket, enum stage stage);

/* A socket that is connected without a packet, in repair mode. */
struct stream_end_point {
    uint64_t slot;
    uint64_t local, peer;       /* arena addresses of struct sockaddr */
    socklen_t size;
    uint32_t send_sequence, receive_sequence;
};
/* Make it: a socket of the family of `like`, in repair mode, bound to `local` (its port is filled in if it is 0). */
void stream_emit_bound(struct batch *batch, const struct inet_socket *like, const struct stream_end_point *point);
void stream_emit_connected(struct batch *batch, const struct inet_socket *like, const struct stream_end_point *point);
void stream_emit_window(struct batch *batch, const struct inet_socket *like, const struct stream_end_point *point, uint32_t send, uint32_t receive);
void stream_emit_repair_off(struct batch *batch, const struct inet_socket *like, uint64_t slot);
void stream_emit_number(struct batch *batch, uint64_t slot, int name, int value, const char *what);
/* ROLE_WIDOWED and ROLE_ENDED. */
void stream_emit_alone(struct plan *plan, const struct inet_socket *socket);

/* ---- datagrams ---- */
int udp_queue_read(struct inet_socket *socket, struct error *err);
/* Put the unread datagrams into the queue of the socket at `slot`, which has options but no address yet. */
void udp_queue_emit(struct plan *plan, struct batch *batch, const struct inet_socket *socket, uint64_t slot);
int multicast_read(struct inet_socket *socket, struct error *err);
void raw_peer_read(struct inet_socket *socket);
void multicast_emit(struct batch *batch, const struct inet_socket *socket, uint64_t slot);

#endif
