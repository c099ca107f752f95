#include "outside.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* A server with more connections than this has them counted, not compared: the comparison is quadratic. */
#define MAX_ENDS 4096

static bool as_mapped(const struct sockaddr_storage *address, struct sockaddr_in6 *mapped)
{
    if (address->ss_family == AF_INET6) {
        memcpy(mapped, address, sizeof *mapped);
        return true;
    }
    if (address->ss_family != AF_INET)
        return false;
    const struct sockaddr_in *four = (const struct sockaddr_in *)address;
    *mapped = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = four->sin_port };
    mapped->sin6_addr.s6_addr[10] = mapped->sin6_addr.s6_addr[11] = 0xff;
    memcpy(mapped->sin6_addr.s6_addr + 12, &four->sin_addr, sizeof four->sin_addr);
    return true;
}

static bool is_tcp(int fd)
{
    int type = 0, protocol = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 || type != SOCK_STREAM)
        return false;
    size = sizeof protocol;
    return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) == 0 && protocol == IPPROTO_TCP;
}

void outside_note(struct tcp_ends *ends, const struct description *description)
{
    struct sockaddr_storage local = { 0 }, peer = { 0 };
    socklen_t local_size = sizeof local, peer_size = sizeof peer;
    if (ends->count == MAX_ENDS || !is_tcp(description->local) || getpeername(description->local, (struct sockaddr *)&peer, &peer_size) < 0 ||
        getsockname(description->local, (struct sockaddr *)&local, &local_size) < 0)
        return;
    struct tcp_end end = { .process = description->holder, .fd = description->holder_fd };
    if (!as_mapped(&local, &end.local) || !as_mapped(&peer, &end.peer))
        return;
    ends->items = must_grow(ends->items, (size_t)(ends->count + 1) * sizeof *ends->items);
    ends->items[ends->count++] = end;
}

static bool same(const struct sockaddr_in6 *left, const struct sockaddr_in6 *right)
{
    return left->sin6_port == right->sin6_port && memcmp(&left->sin6_addr, &right->sin6_addr, sizeof left->sin6_addr) == 0;
}

static bool has_counterpart(const struct tcp_ends *ends, const struct tcp_end *end)
{
    for (int i = 0; i < ends->count; i++)
        if (same(&ends->items[i].local, &end->peer) && same(&ends->items[i].peer, &end->local))
            return true;
    return false;
}

void outside_report(struct tcp_ends *ends, struct blockers *warnings)
{
    for (int i = 0; i < ends->count; i++) {
        const struct tcp_end *end = &ends->items[i];
        if (has_counterpart(ends, end))
            continue;
        char address[INET6_ADDRSTRLEN] = "?", message[256];
        bool four = IN6_IS_ADDR_V4MAPPED(&end->peer.sin6_addr);
        inet_ntop(four ? AF_INET : AF_INET6, four ? &end->peer.sin6_addr.s6_addr[12] : end->peer.sin6_addr.s6_addr, address, sizeof address);
        snprintf(message, sizeof message, "%s fd %d: the TCP connection with %s%s%s port %d, whose other end is outside the workspace, is closed in "
                 "branches; nothing is to be done if the program connects again", process_label(end->process), end->fd, four ? "" : "[", address,
                 four ? "" : "]", ntohs(end->peer.sin6_port));
        blockers_add(warnings, end->process, end->fd, message);
    }
    free(ends->items);
    *ends = (struct tcp_ends){ 0 };
}
