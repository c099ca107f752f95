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

static bool is_listener(int fd)
{
    int listening = 0;
    socklen_t size = sizeof listening;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening;
}

void outside_note(struct tcp_ends *ends, const struct description *description)
{
    struct sockaddr_storage local = { 0 }, peer = { 0 };
    socklen_t local_size = sizeof local, peer_size = sizeof peer;
    if (ends->count == MAX_ENDS || !is_tcp(description->local) || getsockname(description->local, (struct sockaddr *)&local, &local_size) < 0)
        return;
    struct tcp_end end = { .process = description->holder, .fd = description->holder_fd, .listener = is_listener(description->local) };
    if (!as_mapped(&local, &end.local))
        return;
    if (!end.listener && (getpeername(description->local, (struct sockaddr *)&peer, &peer_size) < 0 || !as_mapped(&peer, &end.peer)))
        return;
    ends->items = must_grow(ends->items, (size_t)(ends->count + 1) * sizeof *ends->items);
    ends->items[ends->count++] = end;
}

static bool same(const struct sockaddr_in6 *left, const struct sockaddr_in6 *right)
{
    return left->sin6_port == right->sin6_port && memcmp(&left->sin6_addr, &right->sin6_addr, sizeof left->sin6_addr) == 0;
}

/* Who has not been accepted yet has no counterpart in any process. */
static bool leads_to_listener(const struct tcp_end *listener, const struct tcp_end *end)
{
    static const struct in6_addr any = IN6ADDR_ANY_INIT, any_four = { .s6_addr = { [10] = 0xff, [11] = 0xff } };
    const struct in6_addr *bound = &listener->local.sin6_addr;
    if (!listener->listener || listener->local.sin6_port != end->peer.sin6_port)
        return false;
    bool wildcard = memcmp(bound, &any, sizeof any) == 0 || memcmp(bound, &any_four, sizeof any) == 0;
    return memcmp(bound, &end->peer.sin6_addr, sizeof any) == 0 || (wildcard && memcmp(&end->local.sin6_addr, &end->peer.sin6_addr, sizeof any) == 0);
}

static bool has_counterpart(const struct tcp_ends *ends, const struct tcp_end *end)
{
    for (int i = 0; i < ends->count; i++)
        if ((same(&ends->items[i].local, &end->peer) && same(&ends->items[i].peer, &end->local)) || leads_to_listener(&ends->items[i], end))
            return true;
    return false;
}

void outside_report(struct tcp_ends *ends, struct blockers *warnings)
{
    for (int i = 0; i < ends->count; i++) {
        const struct tcp_end *end = &ends->items[i];
        if (end->listener || has_counterpart(ends, end))
            continue;
        char address[INET6_ADDRSTRLEN] = "?", message[320];
        bool four = IN6_IS_ADDR_V4MAPPED(&end->peer.sin6_addr);
        inet_ntop(four ? AF_INET : AF_INET6, four ? &end->peer.sin6_addr.s6_addr[12] : end->peer.sin6_addr.s6_addr, address, sizeof address);
        snprintf(message, sizeof message, "%s fd %d: the TCP connection with %s%s%s port %d, whose other end is outside the workspace (as that of a viewer or of "
                 "a published port is), is closed in branches; nothing is to be done if the program connects again", process_label(end->process), end->fd, four ? "" : "[", address,
                 four ? "" : "]", ntohs(end->peer.sin6_port));
        blockers_add(warnings, end->process, end->fd, message);
    }
    free(ends->items);
    *ends = (struct tcp_ends){ 0 };
}
