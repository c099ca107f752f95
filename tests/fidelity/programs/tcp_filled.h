/* Connections that are full, and how one that does not move stands: for programs that fill them before the fork and empty them after it. */
#ifndef TCP_FILLED_H
#define TCP_FILLED_H

#include "fidelity.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#define TCP_FILLED_MAXIMUM (64 << 20)
#define TCP_FILLED_PATIENCE_MS 20000

static inline unsigned char tcp_pattern(uint64_t at)
{
    return (unsigned char)(at * 2654435761u >> 24 ^ at >> 3);
}

/* Write until nothing more fits; `total` bytes were written before. Returns how many have been now. */
static inline uint64_t tcp_fill(int fd, uint64_t total)
{
    static unsigned char block[65536];
    for (;;) {
        for (size_t i = 0; i < sizeof block; i++)
            block[i] = tcp_pattern(total + i);
        ssize_t sent = send(fd, block, sizeof block, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && errno == EAGAIN)
            return total;
        CHECK(sent > 0 && total < TCP_FILLED_MAXIMUM, "filling: %s", strerror(errno));
        total += (uint64_t)sent;
    }
}

static inline struct tcp_info tcp_info_of(int fd)
{
    struct tcp_info info = { 0 };
    socklen_t size = sizeof info;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size));
    return info;
}

/* What of the sender tells whether it waits for the window, for an acknowledgement, or for its timer. */
static inline const char *tcp_described(int sender)
{
    static char text[256];
    struct tcp_info info = tcp_info_of(sender);
    snprintf(text, sizeof text, "sender: state %u/%u, %u segments unacknowledged (%u lost), %u bytes not sent, window %u, congestion window %u, "
             "backoff %u, timeout %u ms, last sent %u ms ago, last heard %u ms ago",
             info.tcpi_state, info.tcpi_ca_state, info.tcpi_unacked, info.tcpi_lost, info.tcpi_notsent_bytes, info.tcpi_snd_wnd, info.tcpi_snd_cwnd,
             info.tcpi_backoff, info.tcpi_rto / 1000, info.tcpi_last_data_sent, info.tcpi_last_ack_recv);
    return text;
}

/* Read the `total` bytes that tcp_fill wrote at the other end, `sender`. */
static inline void tcp_drain(int fd, int sender, uint64_t total, const char *what)
{
    static unsigned char block[65536];
    uint64_t at = 0;
    while (at < total) {
        struct pollfd state = { fd, POLLIN, 0 };
        CHECK(poll(&state, 1, TCP_FILLED_PATIENCE_MS) == 1, "%s: stuck at %lu of %lu; %s", what, at, total, tcp_described(sender));
        ssize_t got = recv(fd, block, sizeof block, 0);
        CHECK(got > 0, "%s: %zd at %lu of %lu: %s", what, got, at, total, strerror(errno));
        for (ssize_t i = 0; i < got; i++)
            CHECK(block[i] == tcp_pattern(at + (uint64_t)i), "%s: wrong byte at %lu of %lu", what, at + (uint64_t)i, total);
        at += (uint64_t)got;
    }
    CHECK(at == total, "%s: %lu bytes instead of %lu", what, at, total);
}

#endif
