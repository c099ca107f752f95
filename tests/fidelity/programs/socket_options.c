/* Options of listeners, connections and datagram sockets, all of them set to something unusual and compared one by one. */
#include "fidelity.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>

struct option {
    const char *text;
    int level, name, value;
    int kept;                   /* as read before the fork; -1 = this kernel or workspace does not allow it */
};

#define OPTION(level, name, value) { #name, level, name, value, 0 }
#define EVERY_SOCKET \
    OPTION(SOL_SOCKET, SO_PRIORITY, 5), OPTION(SOL_SOCKET, SO_RCVLOWAT, 3), OPTION(SOL_SOCKET, SO_TIMESTAMP, 1), \
    OPTION(SOL_SOCKET, SO_RCVBUF, 70000), OPTION(SOL_SOCKET, SO_SNDBUF, 90000), OPTION(IPPROTO_IP, IP_TOS, 0x28), OPTION(IPPROTO_IP, IP_TTL, 77), \
    OPTION(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO), OPTION(SOL_SOCKET, SO_REUSEADDR, 1)
#define EVERY_STREAM \
    OPTION(SOL_SOCKET, SO_KEEPALIVE, 1), OPTION(SOL_SOCKET, SO_OOBINLINE, 1), OPTION(IPPROTO_TCP, TCP_NODELAY, 1), \
    OPTION(IPPROTO_TCP, TCP_KEEPIDLE, 111), OPTION(IPPROTO_TCP, TCP_KEEPINTVL, 22), OPTION(IPPROTO_TCP, TCP_KEEPCNT, 4), \
    OPTION(IPPROTO_TCP, TCP_USER_TIMEOUT, 54321), OPTION(IPPROTO_TCP, TCP_NOTSENT_LOWAT, 4096), OPTION(IPPROTO_TCP, TCP_SYNCNT, 3), \
    OPTION(IPPROTO_TCP, TCP_LINGER2, 17)
#define RARE \
    OPTION(SOL_SOCKET, SO_DONTROUTE, 0), OPTION(SOL_SOCKET, SO_NO_CHECK, 1), OPTION(IPPROTO_IP, IP_RECVERR, 1), OPTION(IPPROTO_IP, IP_PKTINFO, 1), OPTION(IPPROTO_IP, IP_RECVTTL, 1), \
    OPTION(IPPROTO_IP, IP_RECVTOS, 1), OPTION(IPPROTO_IP, IP_FREEBIND, 1), OPTION(IPPROTO_IP, IP_TRANSPARENT, 1), \
    OPTION(IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1), OPTION(IPPROTO_IP, IP_MINTTL, 5)
#define SIX \
    OPTION(IPPROTO_IPV6, IPV6_TCLASS, 0x48), OPTION(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 33), OPTION(IPPROTO_IPV6, IPV6_RECVPKTINFO, 1), \
    OPTION(IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1), OPTION(IPPROTO_IPV6, IPV6_RECVTCLASS, 1), OPTION(IPPROTO_IPV6, IPV6_V6ONLY, 1), \
    OPTION(IPPROTO_IPV6, IPV6_DONTFRAG, 1), OPTION(IPPROTO_IPV6, IPV6_RECVERR, 1)

static struct option listener_options[] = {
    EVERY_SOCKET, EVERY_STREAM, RARE, OPTION(IPPROTO_TCP, TCP_DEFER_ACCEPT, 7), OPTION(IPPROTO_TCP, TCP_FASTOPEN, 9),
    OPTION(IPPROTO_TCP, TCP_SAVE_SYN, 1), OPTION(IPPROTO_TCP, TCP_MAXSEG, 1000), OPTION(IPPROTO_TCP, TCP_WINDOW_CLAMP, 30000), { 0 },
};
static struct option connection_options[] = { EVERY_SOCKET, EVERY_STREAM, OPTION(IPPROTO_TCP, TCP_INQ, 1), OPTION(IPPROTO_TCP, TCP_CORK, 1), { 0 } };
static struct option bound_options[] = { EVERY_SOCKET, EVERY_STREAM, RARE, { 0 } };
static struct option datagram_options[] = {
    EVERY_SOCKET, RARE, OPTION(SOL_SOCKET, SO_BROADCAST, 1), OPTION(SOL_SOCKET, SO_RXQ_OVFL, 1),
    OPTION(SOL_SOCKET, SO_PEEK_OFF, 0), OPTION(IPPROTO_IP, IP_MULTICAST_TTL, 9), OPTION(IPPROTO_IP, IP_MULTICAST_LOOP, 0),
    OPTION(IPPROTO_UDP, UDP_GRO, 1), OPTION(IPPROTO_UDP, UDP_SEGMENT, 1200), OPTION(IPPROTO_UDP, UDP_CORK, 1), { 0 },
};
static struct option six_options[] = {
    EVERY_SOCKET, SIX, OPTION(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 6), OPTION(IPPROTO_UDP, UDP_NO_CHECK6_RX, 1), { 0 },
};

static int read_one(int fd, const struct option *option)
{
    int value = 0;
    socklen_t size = sizeof value;
    return getsockopt(fd, option->level, option->name, &value, &size) < 0 ? -1 : value;
}

static void set_all(int fd, struct option *options)
{
    for (struct option *option = options; option->text; option++)
        if (setsockopt(fd, option->level, option->name, &option->value, sizeof option->value) < 0)
            CHECK(errno == EPERM || errno == ENOPROTOOPT || errno == EINVAL, "%s: %s", option->text, strerror(errno));
}

static void remember(int fd, struct option *options)
{
    for (struct option *option = options; option->text; option++)
        option->kept = read_one(fd, option);
}

static void compare(int fd, const struct option *options, const char *what)
{
    for (const struct option *option = options; option->text; option++)
        CHECK(read_one(fd, option) == option->kept, "%s: %s is %d, not %d", what, option->text, read_one(fd, option), option->kept);
}

static void expect_times(int fd, const char *what)
{
    struct timeval time;
    struct linger linger;
    socklen_t size = sizeof time;
    MUST(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, &size));
    CHECK(time.tv_sec == 3 && time.tv_usec / 1000 == 500, "%s: SO_RCVTIMEO is %ld.%06ld", what, time.tv_sec, time.tv_usec);
    size = sizeof linger;
    MUST(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, &size));
    CHECK(linger.l_onoff == 1 && linger.l_linger == 13, "%s: SO_LINGER is %d, %d", what, linger.l_onoff, linger.l_linger);
    char name[16] = "", device[16] = "";
    size = sizeof name;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size));
    CHECK(strcmp(name, "reno") == 0, "%s: TCP_CONGESTION is %s", what, name);
    size = sizeof device;
    MUST(getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, device, &size));
    CHECK(strcmp(device, "lo") == 0, "%s: SO_BINDTODEVICE is \"%s\"", what, device);
}

static void set_times(int fd)
{
    struct timeval time = { 3, 500000 };
    struct linger linger = { 1, 13 };
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time));
    MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    MUST(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4));
    MUST(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "lo", 3));
}

int main(void)
{
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0)), bound = MUST(socket(AF_INET, SOCK_STREAM, 0));
    int plain = MUST(socket(AF_INET, SOCK_STREAM, 0));
    int datagram = MUST(socket(AF_INET, SOCK_DGRAM, 0)), six = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(18351), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct sockaddr_in6 address_six = { .sin6_family = AF_INET6, .sin6_port = htons(18352) };
    MUST(bind(plain, (void *)&address, sizeof address));
    MUST(listen(plain, 5));
    int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(client, (void *)&address, sizeof address));
    int server = MUST(accept(plain, NULL, NULL));
    set_all(client, connection_options);
    set_times(client);
    set_all(listener, listener_options);
    set_times(listener);
    address.sin_port = htons(18353);
    MUST(bind(listener, (void *)&address, sizeof address));
    MUST(listen(listener, 33));
    set_all(bound, bound_options);
    address.sin_port = htons(18354);
    MUST(bind(bound, (void *)&address, sizeof address));
    set_all(datagram, datagram_options);
    MUST(bind(datagram, (void *)&address, sizeof address));
    set_all(six, six_options);
    MUST(bind(six, (void *)&address_six, sizeof address_six));
    remember(client, connection_options);
    remember(listener, listener_options);
    remember(bound, bound_options);
    remember(datagram, datagram_options);
    remember(six, six_options);

    fidelity_ready();
    fidelity_await_go();

    compare(client, connection_options, "connection");
    compare(listener, listener_options, "listener");
    compare(bound, bound_options, "bound");
    compare(datagram, datagram_options, "datagram");
    compare(six, six_options, "IPv6");
    expect_times(client, "connection");
    expect_times(listener, "listener");
    struct tcp_info info;
    socklen_t size = sizeof info;
    MUST(getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &size));
    CHECK(info.tcpi_state == TCP_LISTEN && info.tcpi_sacked == 33, "state %u, backlog %u", info.tcpi_state, info.tcpi_sacked);
    /* Who owns a socket decides about groups on one port, and packet filters ask for it. */
    struct stat mine;
    MUST(fstat(server, &mine));
    CHECK(mine.st_uid == getuid(), "the accepted socket belongs to %u", mine.st_uid);
    CHECK(listen(bound, 3) == 0, "the bound socket cannot listen: %s", strerror(errno));
    fidelity_pass();
}
