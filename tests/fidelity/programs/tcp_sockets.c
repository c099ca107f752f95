/* TCP: listeners with their options and backlog, and what waits there; unconnected sockets; groups on one port. */
#include "fidelity.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static int number(int fd, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    MUST(getsockopt(fd, level, name, &value, &size));
    return value;
}

static void set(int fd, int level, int name, int value)
{
    MUST(setsockopt(fd, level, name, &value, sizeof value));
}

static int listen_v4(uint16_t port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    MUST(bind(fd, (void *)&address, sizeof address));
    MUST(listen(fd, 17));
    return fd;
}

static int connect_v4(uint16_t port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(fd, (void *)&address, sizeof address));
    return fd;
}

int main(void)
{
    int listener = listen_v4(8123);
    set(listener, IPPROTO_TCP, TCP_NODELAY, 1);
    set(listener, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(listener, IPPROTO_TCP, TCP_KEEPIDLE, 77);
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(80) };
    int dual = MUST(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0)), only = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    MUST(bind(dual, (void *)&any, sizeof any));
    MUST(listen(dual, 5));
    any.sin6_port = htons(81);
    set(only, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    MUST(bind(only, (void *)&any, sizeof any));
    MUST(listen(only, 5));
    /* Two of a group, of one user. */
    struct sockaddr_in group = { .sin_family = AF_INET, .sin_port = htons(8124) };
    int members[2];
    MUST(setresuid(0, 1000, 0));
    for (int i = 0; i < 2; i++) {
        members[i] = MUST(socket(AF_INET, SOCK_STREAM, 0));
        set(members[i], SOL_SOCKET, SO_REUSEPORT, 1);
        MUST(bind(members[i], (void *)&group, sizeof group));
        MUST(listen(members[i], 5));
    }
    MUST(setresuid(0, 0, 0));
    /* The option that let two listen at one port is taken back. */
    int sharers[2], off = 0;
    group.sin_port = htons(8126);
    for (int i = 0; i < 2; i++) {
        sharers[i] = MUST(socket(AF_INET, SOCK_STREAM, 0));
        set(sharers[i], SOL_SOCKET, SO_REUSEPORT, 1);
        MUST(bind(sharers[i], (void *)&group, sizeof group));
        MUST(listen(sharers[i], 5));
    }
    MUST(setsockopt(sharers[0], SOL_SOCKET, SO_REUSEPORT, &off, sizeof off));
    group.sin_port = htons(8124);
    int client = connect_v4(8123), accepted = MUST(accept(listener, NULL, NULL)), waiting = connect_v4(8123);
    MUST((int)send(client, "unread", 6, 0));
    int unbound = MUST(socket(AF_INET, SOCK_STREAM, 0)), bound = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in place = { .sin_family = AF_INET, .sin_port = htons(8125), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    MUST(bind(bound, (void *)&place, sizeof place));
    int v6 = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    struct sockaddr_in6 loopback = { .sin6_family = AF_INET6, .sin6_port = htons(81), .sin6_addr = in6addr_loopback };
    set(v6, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    MUST(connect(v6, (void *)&loopback, sizeof loopback));
    int set_of_one = MUST(epoll_create1(0));
    struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u64 = 99 };
    MUST(epoll_ctl(set_of_one, EPOLL_CTL_ADD, client, &event));

    fidelity_ready();
    fidelity_await_go();

    CHECK(number(listener, IPPROTO_TCP, TCP_NODELAY) == 1 && number(listener, SOL_SOCKET, SO_KEEPALIVE) == 1
          && number(listener, IPPROTO_TCP, TCP_KEEPIDLE) == 77 && number(listener, SOL_SOCKET, SO_REUSEADDR) == 1, "an option of the listener is lost");
    CHECK(fcntl(listener, F_GETFD) == FD_CLOEXEC && fcntl(dual, F_GETFL) & O_NONBLOCK, "descriptor flags are lost");
    struct tcp_info info;
    socklen_t size = sizeof info;
    MUST(getsockopt(listener, IPPROTO_TCP, TCP_INFO, &info, &size));
    CHECK(info.tcpi_state == TCP_LISTEN && info.tcpi_sacked == 17, "state %u, backlog %u", info.tcpi_state, info.tcpi_sacked);
    char unread[8] = "";
    CHECK(recv(accepted, unread, sizeof unread, MSG_DONTWAIT) == 6 && strcmp(unread, "unread") == 0, "the connection suffered");
    MUST((int)send(accepted, "answer", 6, 0));
    struct epoll_event got_event;
    CHECK(epoll_wait(set_of_one, &got_event, 1, 20000) == 1 && got_event.data.u64 == 99 && got_event.events == EPOLLIN,
          "epoll on a kept connection: %#x", got_event.events);
    CHECK(recv(client, unread, sizeof unread, 0) == 6, "the connection suffered");
    int late = MUST(accept(listener, NULL, NULL));
    MUST((int)send(waiting, "late", 4, 0));
    CHECK(recv(late, unread, sizeof unread, 0) == 4, "the connection that waited suffered");
    MUST(accept(only, NULL, NULL));
    int fresh = connect_v4(8123), served = MUST(accept(listener, NULL, NULL));
    MUST((int)send(fresh, "hello", 5, 0));
    char text[8] = "";
    CHECK(recv(served, text, sizeof text, 0) == 5 && strcmp(text, "hello") == 0, "a new connection does not work");
    int through = connect_v4(80);
    MUST(accept(dual, NULL, NULL));
    close(through);
    CHECK(number(only, IPPROTO_IPV6, IPV6_V6ONLY) == 1 && number(dual, IPPROTO_IPV6, IPV6_V6ONLY) == 0, "IPV6_V6ONLY is lost");
    struct sockaddr_in got;
    size = sizeof got;
    MUST(getsockname(bound, (void *)&got, &size));
    CHECK(ntohs(got.sin_port) == 8125, "the bound socket has port %u", ntohs(got.sin_port));
    CHECK(send(unbound, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "the unconnected socket: %s", strerror(errno));
    CHECK(number(sharers[0], SOL_SOCKET, SO_REUSEPORT) == 0 && number(sharers[1], SOL_SOCKET, SO_REUSEPORT) == 1, "SO_REUSEPORT has changed");
    CHECK(number(sharers[0], SOL_SOCKET, SO_REUSEADDR) == 0, "SO_REUSEADDR has changed");
    /* Only the same user may join the group. */
    int third = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set(third, SOL_SOCKET, SO_REUSEPORT, 1);
    CHECK(bind(third, (void *)&group, sizeof group) < 0 && errno == EADDRINUSE, "another user joined the group");
    close(third);
    MUST(setresuid(0, 1000, 0));
    third = MUST(socket(AF_INET, SOCK_STREAM, 0));
    set(third, SOL_SOCKET, SO_REUSEPORT, 1);
    MUST(bind(third, (void *)&group, sizeof group));
    fidelity_pass();
}
