/* Options of internet sockets. Each costs 0.4 us a socket while the source stands still, so connections, which can be many, have a shorter list. */
#include "inet.h"

#include <errno.h>
#include <linux/icmp.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <string.h>
#include <sys/syscall.h>

/* Newer than some headers, or only in the kernel's. */
#define BUF_LOCK 72             /* SO_BUF_LOCK */
#define RECEIVE_MARK 75         /* SO_RCVMARK */
#define TX_REHASH 74            /* SO_TXREHASH */
#define TIMESTAMP_NEW 63
#define TIMESTAMPNS_NEW 64
#define TIMESTAMPING_NEW 65
#define IP_LOCAL_PORT_RANGE_NUMBER 51
#define SOL_UDPLITE_LEVEL 136

#define BOTH_KINDS_OF_BUFFER { SOL_SOCKET, SO_SNDBUF, 4 }, { SOL_SOCKET, SO_RCVBUF, 4 }, { SOL_SOCKET, BUF_LOCK, 4 }
#define REUSE { SOL_SOCKET, SO_REUSEADDR, 4 }, { SOL_SOCKET, SO_REUSEPORT, 4 }
#define ANY_SOCKET \
    { SOL_SOCKET, SO_RCVTIMEO, 16 }, { SOL_SOCKET, SO_SNDTIMEO, 16 }, { SOL_SOCKET, SO_PRIORITY, 4 }, { SOL_SOCKET, SO_MARK, 4 }, \
    { SOL_SOCKET, SO_TIMESTAMP, 4 }, { SOL_SOCKET, SO_TIMESTAMPNS, 4 }, { SOL_SOCKET, SO_TIMESTAMPING, 8 }, \
    { SOL_SOCKET, SO_BINDTODEVICE, 16, true }, { SOL_SOCKET, SO_ZEROCOPY, 4 }, { SOL_SOCKET, SO_RCVLOWAT, 4 }, \
    { IPPROTO_IP, IP_TOS, 4 }, { IPPROTO_IP, IP_TTL, 4 }, { IPPROTO_IP, IP_RECVERR, 4 }, { IPPROTO_IP, IP_MTU_DISCOVER, 4 }, \
    { IPPROTO_IPV6, IPV6_V6ONLY, 4 }, { IPPROTO_IPV6, IPV6_TCLASS, 4 }, { IPPROTO_IPV6, IPV6_UNICAST_HOPS, 4 }, \
    { IPPROTO_IPV6, IPV6_RECVERR, 4 }
#define RARER \
    { SOL_SOCKET, SO_BROADCAST, 4 }, { SOL_SOCKET, SO_DONTROUTE, 4 }, { SOL_SOCKET, SO_BUSY_POLL, 4 }, { SOL_SOCKET, SO_MAX_PACING_RATE, 8 }, \
    { SOL_SOCKET, SO_LOCK_FILTER, 4 }, { SOL_SOCKET, SO_NO_CHECK, 4 }, { SOL_SOCKET, TIMESTAMP_NEW, 4 }, { SOL_SOCKET, TIMESTAMPNS_NEW, 4 }, \
    { SOL_SOCKET, TIMESTAMPING_NEW, 8 }, { SOL_SOCKET, RECEIVE_MARK, 4 }, { SOL_SOCKET, TX_REHASH, 4 }, { SOL_SOCKET, SO_SELECT_ERR_QUEUE, 4 }, \
    { IPPROTO_IP, IP_FREEBIND, 4 }, { IPPROTO_IP, IP_TRANSPARENT, 4 }, { IPPROTO_IP, IP_OPTIONS, 40, true }, { IPPROTO_IP, IP_PKTINFO, 4 }, \
    { IPPROTO_IP, IP_RECVTOS, 4 }, { IPPROTO_IP, IP_RECVTTL, 4 }, { IPPROTO_IP, IP_RECVOPTS, 4 }, { IPPROTO_IP, IP_RETOPTS, 4 }, \
    { IPPROTO_IP, IP_RECVORIGDSTADDR, 4 }, { IPPROTO_IP, IP_MINTTL, 4 }, { IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 4 }, \
    { IPPROTO_IP, IP_LOCAL_PORT_RANGE_NUMBER, 4 }, { IPPROTO_IP, IP_PASSSEC, 4 }, { IPPROTO_IP, IP_RECVFRAGSIZE, 4 }, \
    { IPPROTO_IP, IP_UNICAST_IF, 4 }, { IPPROTO_IPV6, IPV6_FREEBIND, 4 }, { IPPROTO_IPV6, IPV6_TRANSPARENT, 4 }, \
    { IPPROTO_IPV6, IPV6_MTU_DISCOVER, 4 }, { IPPROTO_IPV6, IPV6_RECVPKTINFO, 4 }, { IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 4 }, \
    { IPPROTO_IPV6, IPV6_RECVTCLASS, 4 }, { IPPROTO_IPV6, IPV6_RECVRTHDR, 4 }, { IPPROTO_IPV6, IPV6_RECVHOPOPTS, 4 }, \
    { IPPROTO_IPV6, IPV6_RECVDSTOPTS, 4 }, { IPPROTO_IPV6, IPV6_RECVPATHMTU, 4 }, { IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, 4 }, \
    { IPPROTO_IPV6, IPV6_DONTFRAG, 4 }, { IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 4 }, { IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, 4 }, \
    { IPPROTO_IPV6, IPV6_MINHOPCOUNT, 4 }, { IPPROTO_IPV6, IPV6_UNICAST_IF, 4 }
#define ANY_STREAM \
    { SOL_SOCKET, SO_KEEPALIVE, 4 }, { SOL_SOCKET, SO_LINGER, 8 }, { SOL_SOCKET, SO_OOBINLINE, 4 }, \
    { IPPROTO_TCP, TCP_NODELAY, 4 }, { IPPROTO_TCP, TCP_CORK, 4 }, { IPPROTO_TCP, TCP_KEEPIDLE, 4 }, { IPPROTO_TCP, TCP_KEEPINTVL, 4 }, \
    { IPPROTO_TCP, TCP_KEEPCNT, 4 }, { IPPROTO_TCP, TCP_USER_TIMEOUT, 4 }, { IPPROTO_TCP, TCP_CONGESTION, 16 }, \
    { IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4 }, { IPPROTO_TCP, TCP_LINGER2, 4 }, { IPPROTO_TCP, TCP_SYNCNT, 4 }, { IPPROTO_TCP, TCP_INQ, 4 }, \
    { SOL_SOCKET, SO_PEEK_OFF, 4 }

static const struct option_name connection_options[] = { REUSE, BOTH_KINDS_OF_BUFFER, ANY_SOCKET, ANY_STREAM, { 0 } };
static const struct option_name stream_options[] = {
    REUSE, BOTH_KINDS_OF_BUFFER, ANY_SOCKET, RARER, ANY_STREAM,
    { IPPROTO_TCP, TCP_DEFER_ACCEPT, 4 }, { IPPROTO_TCP, TCP_FASTOPEN, 4 }, { IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 4 },
    { IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 4 }, { IPPROTO_TCP, TCP_SAVE_SYN, 4 }, { IPPROTO_TCP, TCP_MAXSEG, 4 }, { IPPROTO_TCP, TCP_QUICKACK, 4 },
    { IPPROTO_TCP, TCP_WINDOW_CLAMP, 4 }, { IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 4 }, { IPPROTO_TCP, TCP_TX_DELAY, 4 }, { 0 },
};
static const struct option_name datagram_options[] = {
    REUSE, BOTH_KINDS_OF_BUFFER, ANY_SOCKET, RARER,
    { SOL_SOCKET, SO_RXQ_OVFL, 4 }, { SOL_SOCKET, SO_TXTIME, 8 }, { SOL_SOCKET, SO_PEEK_OFF, 4 },
    { IPPROTO_IP, IP_MULTICAST_TTL, 4 }, { IPPROTO_IP, IP_MULTICAST_LOOP, 4 }, { IPPROTO_IP, IP_MULTICAST_ALL, 4 },
    { IPPROTO_IP, IP_MULTICAST_IF, 4 }, { IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 4 }, { IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 4 },
    { IPPROTO_IPV6, IPV6_MULTICAST_ALL, 4 }, { IPPROTO_IPV6, IPV6_MULTICAST_IF, 4 }, { IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 4 },
    { IPPROTO_UDP, UDP_CORK, 4 }, { IPPROTO_UDP, UDP_NO_CHECK6_TX, 4 }, { IPPROTO_UDP, UDP_NO_CHECK6_RX, 4 }, { IPPROTO_UDP, UDP_SEGMENT, 4 },
    { IPPROTO_UDP, UDP_GRO, 4 }, { SOL_UDPLITE_LEVEL, 10 /* UDPLITE_SEND_CSCOV */, 4 }, { SOL_UDPLITE_LEVEL, 11 /* UDPLITE_RECV_CSCOV */, 4 },
    { 0 },
};
static const struct option_name raw_options[] = {
    REUSE, BOTH_KINDS_OF_BUFFER, ANY_SOCKET, RARER,
    { IPPROTO_IP, IP_HDRINCL, 4 }, { IPPROTO_IP, IP_NODEFRAG, 4 }, { IPPROTO_IP, IP_MULTICAST_TTL, 4 }, { IPPROTO_IP, IP_MULTICAST_LOOP, 4 },
    { IPPROTO_IP, IP_MULTICAST_ALL, 4 }, { IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 4 }, { IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 4 },
    { IPPROTO_IPV6, IPV6_HDRINCL, 4 }, { SOL_RAW, ICMP_FILTER, 4 }, { SOL_RAW, IPV6_CHECKSUM, 4 }, { IPPROTO_ICMPV6, 1 /* ICMPV6_FILTER */, 32 },
    { 0 },
};

struct place { int level, name; };

static bool is_in(const struct socket_option *option, const struct place *places, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (option->level == places[i].level && option->name == places[i].name)
            return true;
    return false;
}
#define IS_IN(option, places) is_in((option), (places), sizeof(places) / sizeof *(places))

/* Connections: what decides about address, route and handshake; the rest would disturb how their queues are filled. */
static const struct place before_connect[] = {
    { SOL_SOCKET, SO_MARK }, { SOL_SOCKET, SO_PRIORITY }, { IPPROTO_IP, IP_TOS }, { IPPROTO_IPV6, IPV6_TCLASS }, { IPPROTO_IPV6, IPV6_V6ONLY },
    { IPPROTO_IP, IP_FREEBIND }, { IPPROTO_IPV6, IPV6_FREEBIND }, { IPPROTO_IP, IP_TRANSPARENT }, { IPPROTO_IPV6, IPV6_TRANSPARENT },
    { IPPROTO_TCP, TCP_CONGESTION },
};
/* Everywhere: what would hold back, hide or freeze something that is still to come. */
static const struct place at_the_end[] = {
    { SOL_SOCKET, SO_PEEK_OFF }, { IPPROTO_TCP, TCP_CORK }, { IPPROTO_UDP, UDP_CORK }, { SOL_SOCKET, SO_TIMESTAMPING },
    { SOL_SOCKET, TIMESTAMPING_NEW },
};
static const struct place elsewhere[] = {
    { SOL_SOCKET, SO_SNDBUF }, { SOL_SOCKET, SO_RCVBUF }, { SOL_SOCKET, BUF_LOCK }, { SOL_SOCKET, SO_BINDTODEVICE }, { SOL_SOCKET, SO_LOCK_FILTER },
};
static const struct place reuse[] = { { SOL_SOCKET, SO_REUSEADDR }, { SOL_SOCKET, SO_REUSEPORT } };
/* Without these a socket would not be the same; what a branch's kernel, interfaces or rights refuse of the others is left out. */
static const struct place necessary[] = {
    { SOL_SOCKET, SO_REUSEADDR }, { SOL_SOCKET, SO_REUSEPORT }, { IPPROTO_IPV6, IPV6_V6ONLY }, { SOL_SOCKET, SO_SNDBUF }, { SOL_SOCKET, SO_RCVBUF },
};

static bool is_connection(const struct inet_socket *socket)
{
    return socket->stream && socket->stream->role != ROLE_UNCONNECTED;
}

int inet_options_read(struct inet_socket *socket, struct error *err)
{
    const struct option_name *names = datagram_options;
    if (socket->stream) {
        const struct stream *stream = socket->stream;
        /* What a connection has found out by itself (its segment size, its window) is not to be set. */
        bool fresh = stream->state == STREAM_CLOSE && !stream->error_pending && !stream->read_shut;
        names = stream->state == STREAM_LISTEN || fresh ? stream_options : connection_options;
    } else if (socket->type == SOCK_RAW) {
        names = raw_options;
    }
    return socket_options_read(&socket->options, socket->description, names, socket->domain, socket->type, socket->protocol, err);
}

static void put(struct batch *batch, const struct inet_socket *socket, uint64_t slot, const struct socket_option *option)
{
    if (IS_IN(option, necessary)) {
        socket_option_put(batch, slot, option, socket->label);
        return;
    }
    EMIT_FLAGS(batch, socket->label, TOLERATING(OPTION_REFUSED), SYS_setsockopt, slot, (uint64_t)option->level, (uint64_t)option->name,
               plan_data(batch->plan, option->value, option->size), option->size);
}

static bool belongs_first(const struct inet_socket *socket, const struct socket_option *option)
{
    if (is_connection(socket))
        return IS_IN(option, before_connect);
    return !IS_IN(option, at_the_end);
}

static bool belongs_elsewhere(const struct inet_socket *socket, const struct socket_option *option)
{
    return IS_IN(option, elsewhere) || (is_connection(socket) && IS_IN(option, reuse));
}

void inet_options_emit_first(struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    for (int i = 0; i < socket->options.count; i++)
        if (!belongs_elsewhere(socket, &socket->options.list[i]) && belongs_first(socket, &socket->options.list[i]))
            put(batch, socket, slot, &socket->options.list[i]);
}

void inet_options_emit_last(struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    for (int i = 0; i < socket->options.count; i++)
        if (!belongs_elsewhere(socket, &socket->options.list[i]) && !belongs_first(socket, &socket->options.list[i]))
            put(batch, socket, slot, &socket->options.list[i]);
    socket_options_emit_filter(batch, &socket->options, slot, socket->label);
    const struct socket_option *lock = socket_options_find(&socket->options, SOL_SOCKET, SO_LOCK_FILTER);
    if (lock)
        put(batch, socket, slot, lock);
}

void inet_options_emit_device(struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    const struct socket_option *device = socket_options_find(&socket->options, SOL_SOCKET, SO_BINDTODEVICE);
    if (device && device->size)
        EMIT_FLAGS(batch, socket->label, TOLERATING(INTERFACE_MISSING), SYS_setsockopt, slot, SOL_SOCKET, SO_BINDTODEVICE,
                   plan_data(batch->plan, device->value, device->size), device->size);
}

void inet_options_emit_reuse(struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    for (size_t i = 0; i < sizeof reuse / sizeof *reuse; i++) {
        const struct socket_option *option = socket_options_find(&socket->options, reuse[i].level, reuse[i].name);
        if (option)
            put(batch, socket, slot, option);
    }
}

void inet_options_emit_buffers(struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    const struct socket_option *lock = socket_options_find(&socket->options, SOL_SOCKET, BUF_LOCK);
    const struct socket_option *send = socket_options_find(&socket->options, SOL_SOCKET, SO_SNDBUF);
    const struct socket_option *receive = socket_options_find(&socket->options, SOL_SOCKET, SO_RCVBUF);
    int none = 0;
    if (send)
        put(batch, socket, slot, send);
    if (receive)
        put(batch, socket, slot, receive);
    if (lock)
        put(batch, socket, slot, lock);
    else if (send || receive || is_connection(socket) || socket->datagram_count)
        /* Before Linux 5.15 there is no such option: the sizes then stay as they were. */
        EMIT_FLAGS(batch, socket->label, TOLERATING(OPTION_UNKNOWN), SYS_setsockopt, slot, SOL_SOCKET, BUF_LOCK, plan_data(batch->plan, &none, sizeof none),
                   sizeof none);
}
