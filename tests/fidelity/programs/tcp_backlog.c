/* Connections that nobody has accepted yet, and one that cannot be made while the queue is full; multipath listeners. */
#include "fidelity.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#ifndef IPPROTO_MPTCP
#define IPPROTO_MPTCP 262
#endif

static struct sockaddr_in place(uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static int make_listener(uint16_t port, int backlog, int protocol)
{
    struct sockaddr_in address = place(port);
    int fd = socket(AF_INET, SOCK_STREAM, protocol), on = 1;
    if (fd < 0)
        return -1;              /* a kernel without multipath TCP */
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(fd, (void *)&address, sizeof address));
    MUST(listen(fd, backlog));
    return fd;
}

static int reach(uint16_t port, int protocol)
{
    struct sockaddr_in address = place(port);
    int fd = MUST(socket(AF_INET, SOCK_STREAM, protocol));
    MUST(connect(fd, (void *)&address, sizeof address));
    return fd;
}

static uint16_t port_of(int fd, int peer)
{
    struct sockaddr_in got = { 0 };
    socklen_t size = sizeof got;
    MUST(peer ? getpeername(fd, (void *)&got, &size) : getsockname(fd, (void *)&got, &size));
    return ntohs(got.sin_port);
}

static void put(int fd, const char *text)
{
    CHECK(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text), "cannot send \"%s\": %s", text, strerror(errno));
}

static void expect(int fd, const char *text)
{
    char got[64] = "";
    CHECK(recv(fd, got, strlen(text), MSG_WAITALL) == (ssize_t)strlen(text) && strcmp(got, text) == 0, "got \"%s\", not \"%s\"", got, text);
}

static void expect_lost(int fd, const char *what)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    CHECK(got == 0 || (got < 0 && errno == ECONNRESET), "%s: no end: %zd, %s", what, got, strerror(errno));
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "%s: can be written to: %s", what, strerror(errno));
}

/* Until one with this peer comes. */
static int accept_from(int listener, int client, const char *what)
{
    struct pollfd state = { listener, POLLIN, 0 };
    for (int i = 0; i < 8 && poll(&state, 1, 20000) == 1; i++) {
        int fd = MUST(accept(listener, NULL, NULL));
        if (port_of(fd, 1) == port_of(client, 0))
            return fd;
        close(fd);
    }
    fidelity_fail("%s does not wait to be accepted", what);
}

/* Fill the queue of a listener until a connection stays in progress. */
static int connect_in_progress(uint16_t port)
{
    struct sockaddr_in address = place(port);
    for (int i = 0; i < 8; i++) {
        int fd = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
        if (connect(fd, (void *)&address, sizeof address) == 0)
            continue;
        CHECK(errno == EINPROGRESS, "connect: %s", strerror(errno));
        struct pollfd state = { fd, POLLOUT, 0 };
        if (poll(&state, 1, 200) == 0)
            return fd;
    }
    fidelity_fail("a full queue takes more and more connections");
}

int main(void)
{
    int listener = make_listener(18221, 16, 0), small = make_listener(18222, 0, 0), multipath = make_listener(18223, 16, IPPROTO_MPTCP);
    int silent = reach(18221, 0), spoke = reach(18221, 0), finished = reach(18221, 0);
    put(spoke, "lost in the queue");
    MUST(shutdown(finished, SHUT_WR));
    int in_progress = connect_in_progress(18222), single = -1, single_served = -1, multi = -1, multi_served = -1;
    if (multipath >= 0) {
        single = reach(18223, 0);
        single_served = MUST(accept(multipath, NULL, NULL));
        put(single, "single");
        multi = reach(18223, IPPROTO_MPTCP);
        multi_served = MUST(accept(multipath, NULL, NULL));
    }
    uint16_t silent_port = port_of(silent, 0);

    fidelity_ready();
    fidelity_await_go();

    CHECK(port_of(silent, 0) == silent_port && port_of(silent, 1) == 18221, "the waiting client has port %u", port_of(silent, 0));
    put(silent, "hello");
    int served = accept_from(listener, silent, "the silent client");
    expect(served, "hello");
    put(served, "welcome");
    expect(silent, "welcome");
    char byte;
    if (fidelity_in_branch()) {
        /* Whatever the order, only the two that can be kept wait. */
        expect_lost(spoke, "the client that spoke before it was accepted");
        served = accept_from(listener, finished, "the finished client");
    } else {
        served = accept_from(listener, spoke, "the client that spoke");
        expect(served, "lost in the queue");
        served = accept_from(listener, finished, "the finished client");
    }
    CHECK(recv(served, &byte, 1, 0) == 0, "the finished client has no end");
    put(served, "bye");
    expect(finished, "bye");
    /* Room in the queue: the connection comes about when the kernel tries again, which may be a minute from now. */
    MUST(accept(small, NULL, NULL));
    struct pollfd state = { in_progress, POLLOUT, 0 };
    if (poll(&state, 1, 2000) == 1) {
        int error = -1;
        socklen_t size = sizeof error;
        MUST(getsockopt(in_progress, SOL_SOCKET, SO_ERROR, &error, &size));
        CHECK(error == 0, "the connection in progress: %s", strerror(error));
        put(in_progress, "at last");
        expect(accept_from(small, in_progress, "the connection in progress"), "at last");
    } else {
        struct tcp_info info;
        socklen_t size = sizeof info;
        MUST(getsockopt(in_progress, IPPROTO_TCP, TCP_INFO, &info, &size));
        CHECK(info.tcpi_state == TCP_SYN_SENT, "the connection in progress is in state %u", info.tcpi_state);
    }
    if (multipath >= 0) {
        expect(single_served, "single");
        put(single_served, "fine");
        expect(single, "fine");
        if (fidelity_in_branch()) {
            expect_lost(multi, "a multipath connection");
            expect_lost(multi_served, "a multipath connection's other end");
        }
        multi = reach(18223, IPPROTO_MPTCP);
        multi_served = accept_from(multipath, multi, "a new multipath connection");
        put(multi, "many ways");
        expect(multi_served, "many ways");
    }
    fidelity_pass();
}
