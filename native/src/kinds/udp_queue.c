/*
 * Unread datagrams. In a branch each comes again from where it came: a raw socket may send under any address. So that it meets exactly this socket,
 * whatever group or multicast address the socket shares with others, it is sent to a port that the socket has just for that moment: one that
 * the kernel chose can be given back, and the real address is bound after that.
 */
#include "inet.h"
#include "../descriptors.h"
#include "../namespace_plan.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/udp.h>
#include <netinet/ip.h>
#include <netinet/ip6.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define DATAGRAM_MAXIMUM 65536
#define PER_DATAGRAM 512        /* what its operation takes in the arena, roughly */
#define ROOM_FOR_ALL (256 << 20)
#define HOP_LIMIT 255
#define ARRIVAL_MS 1000

/* ---- read ---- */

static void take_destination(struct msghdr *header, struct datagram *datagram)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO) {
            struct in_pktinfo information;
            memcpy(&information, CMSG_DATA(part), sizeof information);
            datagram->to.v4 = information.ipi_addr;
            datagram->to_known = !IN_MULTICAST(ntohl(information.ipi_addr.s_addr));
        } else if (part->cmsg_level == IPPROTO_IPV6 && part->cmsg_type == IPV6_PKTINFO) {
            struct in6_pktinfo information;
            memcpy(&information, CMSG_DATA(part), sizeof information);
            datagram->to.v6 = information.ipi6_addr;
            datagram->to_known = !IN6_IS_ADDR_MULTICAST(&information.ipi6_addr);
        }
    }
}

/* The next one from the peek offset, which moves behind it. Returns 0 when there is none. */
static int peek(const struct inet_socket *socket, char *buffer, struct datagram *datagram)
{
    char control[512];
    struct iovec io = { buffer, DATAGRAM_MAXIMUM };
    *datagram = (struct datagram){ 0 };
    struct msghdr header = { .msg_name = &datagram->from, .msg_namelen = sizeof datagram->from, .msg_iov = &io, .msg_iovlen = 1,
                             .msg_control = control, .msg_controllen = sizeof control };
    ssize_t got = recvmsg(socket->description->local, &header, MSG_PEEK | MSG_DONTWAIT);
    if (got < 0)
        return 0;
    take_destination(&header, datagram);
    datagram->size = (size_t)got;
    datagram->data = must_alloc(datagram->size + 1);
    memcpy(datagram->data, buffer, datagram->size);
    return 1;
}

static int set_offset(const struct inet_socket *socket, int offset, struct error *err)
{
    if (setsockopt(socket->description->local, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset) < 0)
        return fail_errno(err, "%s: cannot set where to peek", socket->label);
    return 0;
}

int udp_queue_read(struct inet_socket *socket, struct error *err)
{
    struct pollfd state = { socket->description->local, POLLIN, 0 };
    if (poll(&state, 1, 0) < 1 || !(state.revents & POLLIN) || socket->protocol != IPPROTO_UDP)
        return 0;
    const struct socket_option *option = socket_options_find(&socket->options, SOL_SOCKET, SO_PEEK_OFF);
    int offset = -1;
    if (option)
        memcpy(&offset, option->value, sizeof offset);
    if (set_offset(socket, 0, err) < 0)
        return -1;
    AUTO_FREE char *buffer = must_buffer(DATAGRAM_MAXIMUM);
    struct datagram datagram;
    int status = 0;
    while (status == 0 && peek(socket, buffer, &datagram)) {
        status = inet_account(socket, datagram.size + PER_DATAGRAM, err);
        if ((socket->datagram_count & (socket->datagram_count - 1)) == 0)
            socket->datagrams = must_grow(socket->datagrams, (size_t)(socket->datagram_count * 2 + 1) * sizeof datagram);
        socket->datagrams[socket->datagram_count++] = datagram;
    }
    return set_offset(socket, offset, err) < 0 ? -1 : status;
}

/* ---- emit ---- */

static bool is_v4(const struct inet_socket *socket, const struct datagram *datagram)
{
    return socket->domain == AF_INET || IN6_IS_ADDR_V4MAPPED(&datagram->from.v6.sin6_addr);
}

static struct in_addr v4_of(const struct in6_addr *mapped)
{
    struct in_addr address;
    memcpy(&address, mapped->s6_addr + 12, sizeof address);
    return address;
}

static struct in_addr v4_destination(const struct inet_socket *socket, const struct datagram *datagram)
{
    struct in_addr loopback = { htonl(INADDR_LOOPBACK) }, bound = { 0 };
    if (datagram->to_known)
        return datagram->to.v4;
    if (socket->domain == AF_INET)
        bound = socket->local.v4.sin_addr;
    else if (IN6_IS_ADDR_V4MAPPED(&socket->local.v6.sin6_addr))
        bound = v4_of(&socket->local.v6.sin6_addr);
    return bound.s_addr && !IN_MULTICAST(ntohl(bound.s_addr)) ? bound : loopback;
}

static struct in6_addr v6_destination(const struct inet_socket *socket, const struct datagram *datagram)
{
    const struct in6_addr *bound = &socket->local.v6.sin6_addr;
    if (datagram->to_known)
        return datagram->to.v6;
    return IN6_IS_ADDR_UNSPECIFIED(bound) || IN6_IS_ADDR_MULTICAST(bound) ? in6addr_loopback : *bound;
}

/* The header as far as the destination's port, which only the branch knows. Returns its size. */
static size_t put_header(char *bytes, const struct inet_socket *socket, const struct datagram *datagram, union inet_address *to)
{
    size_t used;
    uint16_t length = htons((uint16_t)(datagram->size + sizeof(struct udphdr)));
    if (is_v4(socket, datagram)) {
        struct iphdr *header = (struct iphdr *)bytes;
        used = sizeof *header;
        *header = (struct iphdr){ .version = 4, .ihl = 5, .ttl = HOP_LIMIT, .protocol = IPPROTO_UDP };
        header->daddr = v4_destination(socket, datagram).s_addr;
        header->saddr = socket->domain == AF_INET ? datagram->from.v4.sin_addr.s_addr : v4_of(&datagram->from.v6.sin6_addr).s_addr;
        to->v4 = (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr.s_addr = header->daddr };
    } else {
        struct ip6_hdr *header = (struct ip6_hdr *)bytes;
        used = sizeof *header;
        *header = (struct ip6_hdr){ .ip6_src = datagram->from.v6.sin6_addr, .ip6_dst = v6_destination(socket, datagram) };
        header->ip6_flow = htonl(6u << 28);
        header->ip6_plen = length;
        header->ip6_nxt = IPPROTO_UDP;
        header->ip6_hlim = HOP_LIMIT;
        to->v6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_addr = header->ip6_dst };
    }
    memcpy(bytes + used, &datagram->from.v4.sin_port, sizeof(uint16_t));
    return used + sizeof(uint16_t);
}

/* Length and checksum: none, which the receiving socket takes for the moment. */
static void emit_datagram(struct batch *batch, const struct inet_socket *socket, const struct datagram *datagram, uint64_t raw_v4, uint64_t raw_v6,
                          uint64_t port)
{
    struct plan *plan = batch->plan;
    union inet_address to;
    char header[sizeof(struct ip6_hdr) + sizeof(uint16_t)];
    size_t header_size = put_header(header, socket, datagram, &to);
    uint16_t tail[2] = { htons((uint16_t)(datagram->size + sizeof(struct udphdr))), 0 };
    struct iovec parts[4] = {
        { (void *)plan_data(plan, header, header_size), header_size }, { (void *)port, sizeof(uint16_t) },
        { (void *)plan_data(plan, tail, sizeof tail), sizeof tail }, { (void *)plan_data(plan, datagram->data, datagram->size), datagram->size },
    };
    bool v4 = to.any.sa_family == AF_INET;
    struct msghdr message = { .msg_name = (void *)plan_data(plan, &to, sizeof to), .msg_namelen = v4 ? sizeof to.v4 : sizeof to.v6,
                              .msg_iov = (void *)plan_data(plan, parts, sizeof parts), .msg_iovlen = 4 };
    /* An address that the branch lacks: the datagram is lost, as datagrams may be. */
    EMIT_FLAGS(batch, socket->label, OP_LOAD(0) | TOLERATING(NO_PACKET_WAY), SYS_sendmsg, v4 ? raw_v4 : raw_v6,
               plan_data(plan, &message, sizeof message), 0);
}

static uint64_t emit_raw_socket(struct batch *batch, const struct namespace *net, int domain, const char *what)
{
    int room = 4 << 20;
    namespace_enter_net(batch, net);
    EMIT_FLAGS(batch, what, TOLERATING(NO_PACKET_WAY), SYS_socket, (uint64_t)domain, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW);
    uint64_t made = emit_result_cell(batch);
    namespace_leave_net(batch, net);
    EMIT_FLAGS(batch, what, OP_LOAD(0) | TOLERATING(NO_PACKET_WAY), SYS_setsockopt, made, SOL_SOCKET, SO_SNDBUFFORCE,
               plan_data(batch->plan, &room, sizeof room), sizeof room);
    return made;
}

static void emit_all(struct batch *batch, const struct inet_socket *socket, uint64_t slot, uint64_t port)
{
    struct plan *plan = batch->plan;
    uint64_t raw_v4 = emit_raw_socket(batch, socket->net, AF_INET, socket->label);
    uint64_t raw_v6 = socket->domain == AF_INET6 ? emit_raw_socket(batch, socket->net, AF_INET6, socket->label) : 0;
    for (int i = 0; i < socket->datagram_count; i++)
        emit_datagram(batch, socket, &socket->datagrams[i], raw_v4, raw_v6, port);
    struct pollfd arrival = { (int)slot, POLLIN, 0 };
    EMIT(batch, socket->label, SYS_poll, plan_data(plan, &arrival, sizeof arrival), 1, ARRIVAL_MS);
    EMIT_FLAGS(batch, socket->label, OP_LOAD(0) | TOLERATING(NO_PACKET_WAY), SYS_close, raw_v4);
    if (raw_v6)
        EMIT_FLAGS(batch, socket->label, OP_LOAD(0) | TOLERATING(NO_PACKET_WAY), SYS_close, raw_v6);
}

void udp_queue_emit(struct plan *plan, struct batch *batch, const struct inet_socket *socket, uint64_t slot)
{
    if (socket->datagram_count == 0)
        return;
    union inet_address any = { .any.sa_family = (sa_family_t)socket->domain };
    struct sockaddr nobody = { .sa_family = AF_UNSPEC };
    uint32_t size = socket->domain == AF_INET ? sizeof any.v4 : sizeof any.v6;
    uint64_t address = plan_data(plan, &any, sizeof any);
    int on = 1, off = 0;
    int room = ROOM_FOR_ALL, before = socket->options.receive_buffer / 2;
    bool v6 = socket->domain == AF_INET6, set = socket_options_find(&socket->options, IPPROTO_UDP, UDP_NO_CHECK6_RX);
    /* What fitted in the source must fit here, too, though the kernel may count it differently. */
    socket_option_emit(batch, slot, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room, socket->label);
    if (v6)
        socket_option_emit(batch, slot, IPPROTO_UDP, UDP_NO_CHECK6_RX, &on, sizeof on, socket->label);
    EMIT(batch, socket->label, SYS_bind, slot, address, size);
    EMIT(batch, socket->label, SYS_getsockname, slot, address, plan_data(plan, &size, sizeof size));
    emit_all(batch, socket, slot, address + 2 /* sin_port, sin6_port */);
    socket_option_emit(batch, slot, SOL_SOCKET, SO_RCVBUFFORCE, &before, sizeof before, socket->label);
    EMIT(batch, socket->label, SYS_connect, slot, plan_data(plan, &nobody, sizeof nobody), sizeof nobody);
    if (v6 && !set)
        socket_option_emit(batch, slot, IPPROTO_UDP, UDP_NO_CHECK6_RX, &off, sizeof off, socket->label);
}
