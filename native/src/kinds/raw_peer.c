/* A raw socket has no port, and getpeername answers only for those that have one: where it is connected to stands in /proc/PID/net/raw. */
#include "inet.h"
#include "socket_text.h"
#include "../descriptors.h"

#include <stdio.h>
#include <string.h>

/* Addresses are printed as the 32-bit numbers that lie in memory. */
static bool parse_address(union inet_address *address, int domain, const char *digits)
{
    uint32_t words[4];
    int count = domain == AF_INET ? 1 : 4, nothing = 1;
    if (strspn(digits, "0123456789ABCDEFabcdef") < (size_t)count * 8)
        return false;
    for (int i = 0; i < count; i++) {
        if (sscanf(digits + i * 8, "%8x", &words[i]) != 1)
            return false;
        nothing &= words[i] == 0;
    }
    *address = (union inet_address){ .any.sa_family = (sa_family_t)domain };
    if (domain == AF_INET)
        address->v4.sin_addr.s_addr = words[0];
    else
        memcpy(&address->v6.sin6_addr, words, sizeof words);
    return !nothing;
}

void raw_peer_read(struct inet_socket *socket)
{
    if (socket->type != SOCK_RAW || socket->peer_size)
        return;
    const char *line = socket_text_line(socket->domain == AF_INET ? "raw" : "raw6", socket->namespace, socket->description);
    char remote[64];
    if (line && sscanf(line, "%*s %*s %63s", remote) == 1 && parse_address(&socket->peer, socket->domain, remote))
        socket->peer_size = socket->domain == AF_INET ? sizeof socket->peer.v4 : sizeof socket->peer.v6;
}
