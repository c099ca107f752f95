/* A raw socket has no port, and getpeername answers only for those that have one: where it is connected to stands in /proc/PID/net/raw. */
#include "inet.h"
#include "../descriptors.h"
#include "../proc.h"

#include <stdio.h>
#include <string.h>

#define TEXT_LIMIT (4u << 20)

/* Addresses are printed as the 32-bit numbers that lie in memory. */
static bool parse_address(union inet_address *address, int domain, const char *digits)
{
    uint32_t words[4];
    int count = domain == AF_INET ? 1 : 4, nothing = 1;
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
    struct error err = { 0 };
    const struct process *holder = socket->description->holder;
    if (socket->type != SOCK_RAW || socket->peer_size || !holder)
        return;
    AUTO_FREE char *text = proc_read(&err, TEXT_LIMIT, NULL, "/proc/%d/net/%s", holder->pid, socket->domain == AF_INET ? "raw" : "raw6");
    for (const char *line = text ? strchr(text, '\n') : NULL; line && line[1]; line = strchr(line + 1, '\n')) {
        char remote[64];
        unsigned long inode;
        if (sscanf(line + 1, "%*s %*s %63s %*s %*s %*s %*s %*s %*s %lu", remote, &inode) != 2 || inode != socket->description->st.st_ino)
            continue;
        if (parse_address(&socket->peer, socket->domain, remote))
            socket->peer_size = socket->domain == AF_INET ? sizeof socket->peer.v4 : sizeof socket->peer.v6;
        return;
    }
}
