/* UDP: bound, connected, wildcard and broadcast sockets, options, and several on one port. */
#include "fidelity.h"

#include <netinet/in.h>
#include <sys/socket.h>

static struct sockaddr_in loopback(uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static uint16_t port_of(int fd)
{
    struct sockaddr_in got;
    socklen_t size = sizeof got;
    MUST(getsockname(fd, (void *)&got, &size));
    return ntohs(got.sin_port);
}

static int number(int fd, int level, int name)
{
    int value = -1;
    socklen_t size = sizeof value;
    MUST(getsockopt(fd, level, name, &value, &size));
    return value;
}

static void expect(int fd, const char *text)
{
    char got[32] = "";
    CHECK(recv(fd, got, sizeof got - 1, MSG_DONTWAIT) == (ssize_t)strlen(text) && strcmp(got, text) == 0, "fd %d: got \"%s\", not \"%s\"", fd, got, text);
}

int main(void)
{
    int on = 1, size = 300000;
    int server = MUST(socket(AF_INET, SOCK_DGRAM, 0)), client = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
    struct sockaddr_in address = loopback(9123);
    MUST(bind(server, (void *)&address, sizeof address));
    MUST(setsockopt(server, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    MUST(setsockopt(server, IPPROTO_IP, IP_PKTINFO, &on, sizeof on));
    MUST(connect(client, (void *)&address, sizeof address));
    uint16_t client_port = port_of(client);
    int shared[2];
    address = loopback(5353);
    for (int i = 0; i < 2; i++) {
        shared[i] = MUST(socket(AF_INET, SOCK_DGRAM, 0));
        MUST(setsockopt(shared[i], SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
        MUST(bind(shared[i], (void *)&address, sizeof address));
    }
    int broadcast = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(setsockopt(broadcast, SOL_SOCKET, SO_BROADCAST, &on, sizeof on));
    int v6 = MUST(socket(AF_INET6, SOCK_DGRAM, 0));
    struct sockaddr_in6 any = { .sin6_family = AF_INET6, .sin6_port = htons(9124) };
    MUST(bind(v6, (void *)&any, sizeof any));
    int silenced = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    address = loopback(9125);
    MUST(bind(silenced, (void *)&address, sizeof address));
    address = loopback(9123);
    MUST(connect(silenced, (void *)&address, sizeof address));
    MUST(shutdown(silenced, SHUT_WR));
    address = loopback(5353);
    int wanted = number(server, SOL_SOCKET, SO_RCVBUF);

    fidelity_ready();
    fidelity_await_go();

    CHECK(port_of(server) == 9123 && port_of(client) == client_port, "ports %u and %u", port_of(server), port_of(client));
    CHECK(number(server, SOL_SOCKET, SO_RCVBUF) == wanted && number(server, IPPROTO_IP, IP_PKTINFO) == 1, "an option of the server is lost");
    CHECK(number(broadcast, SOL_SOCKET, SO_BROADCAST) == 1, "SO_BROADCAST is lost");
    MUST((int)send(client, "ping", 4, 0));
    expect(server, "ping");
    struct sockaddr_in back = loopback(client_port);
    MUST((int)sendto(server, "pong", 4, 0, (void *)&back, sizeof back));
    expect(client, "pong");
    CHECK(port_of(shared[0]) == 5353 && port_of(shared[1]) == 5353, "the shared port is lost");
    int third = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    CHECK(bind(third, (void *)&address, sizeof address) < 0 && errno == EADDRINUSE, "the shared port is free");
    struct sockaddr_in to_v6 = loopback(9124);
    MUST((int)sendto(server, "mapped", 6, 0, (void *)&to_v6, sizeof to_v6));
    expect(v6, "mapped");
    CHECK(send(silenced, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "a socket that was shut down sends: %s", strerror(errno));
    fidelity_pass();
}
