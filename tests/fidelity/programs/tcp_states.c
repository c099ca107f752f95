/* TCP connections that are closed in one direction, or by one side: what was sent before is read, then the end comes; the other direction goes on. */
#include "fidelity.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

struct pair { int client, server; };

static struct sockaddr_in place(uint16_t port)
{
    return (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static struct pair make_pair(int listener)
{
    struct sockaddr_in address = place(18211);
    struct pair pair = { .client = MUST(socket(AF_INET, SOCK_STREAM, 0)) };
    MUST(connect(pair.client, (void *)&address, sizeof address));
    pair.server = MUST(accept(listener, NULL, NULL));
    return pair;
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

static void expect_end(int fd, const char *what)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    CHECK(got == 0, "%s: no end of file: %zd, %s", what, got, strerror(errno));
}

static void expect_nothing(int fd, const char *what)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    CHECK(got < 0 && errno == EAGAIN, "%s: %zd, %s", what, got, strerror(errno));
}

static void expect_broken(int fd, const char *what)
{
    CHECK(send(fd, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "%s: can be written to: %s", what, strerror(errno));
}

/* The first write after the other side has closed is answered by a reset. */
static void expect_broken_soon(int fd, const char *what)
{
    for (int i = 0; i < 200; i++) {
        if (send(fd, "x", 1, MSG_NOSIGNAL) < 0) {
            CHECK(errno == EPIPE || errno == ECONNRESET, "%s: %s", what, strerror(errno));
            return;
        }
        fidelity_sleep_ms(20);
    }
    fidelity_fail("%s: writing goes on for ever", what);
}

/* SO_PEERNAME also tells of a connection that is over. */
static struct sockaddr_in name_of(int fd, bool peer)
{
    struct sockaddr_in name = { 0 };
    socklen_t size = sizeof name;
    MUST(peer ? getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &name, &size) : getsockname(fd, (void *)&name, &size));
    return name;
}

static void expect_name(struct sockaddr_in got, struct sockaddr_in wanted, const char *what)
{
    CHECK(got.sin_addr.s_addr == wanted.sin_addr.s_addr && got.sin_port == wanted.sin_port, "%s: port %u, not %u", what, ntohs(got.sin_port),
          ntohs(wanted.sin_port));
}

static int state_of(int fd)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size));
    return info.tcpi_state;
}

static void expect_state(int fd, int state, const char *what)
{
    CHECK(state_of(fd) == state, "%s is in state %d, not %d", what, state_of(fd), state);
}

int main(void)
{
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
    struct sockaddr_in address = place(18211);
    MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(listener, (void *)&address, sizeof address));
    MUST(listen(listener, 64));
    struct pair client_done = make_pair(listener), server_done = make_pair(listener), both_done = make_pair(listener);
    put(client_done.client, "to the server");
    put(client_done.server, "to the client");
    MUST(shutdown(client_done.client, SHUT_WR));
    put(server_done.server, "farewell");
    MUST(shutdown(server_done.server, SHUT_WR));
    put(both_done.client, "both");
    MUST(shutdown(both_done.client, SHUT_WR));
    MUST(shutdown(both_done.server, SHUT_WR));
    struct pair deaf = make_pair(listener);
    MUST(shutdown(deaf.client, SHUT_RD));
    struct pair closed = make_pair(listener), closed_empty = make_pair(listener);
    put(closed.client, "before I go");
    close(closed.client);
    close(closed_empty.client);
    struct pair dropped = make_pair(listener);  /* its peer closes without having read: a reset */
    put(dropped.server, "unheard");
    close(dropped.client);
    struct pair read_half = make_pair(listener);
    put(read_half.client, "first second");
    expect(read_half.server, "first ");
    struct pair heard_end = make_pair(listener);
    MUST(shutdown(heard_end.client, SHUT_WR));
    fidelity_sleep_ms(300);
    expect_end(heard_end.server, "before the fork");
    int closed_state = state_of(closed.server), both_state = state_of(both_done.client);

    struct pair over = make_pair(listener), over_alone = make_pair(listener);
    put(over.client, "the last");
    MUST(shutdown(over.client, SHUT_WR));
    MUST(shutdown(over.server, SHUT_WR));
    MUST(shutdown(over_alone.client, SHUT_WR));
    MUST(shutdown(over_alone.server, SHUT_WR));
    close(over_alone.client);
    fidelity_sleep_ms(300);
    struct sockaddr_in over_name = name_of(over.server, false), over_peer = name_of(over.server, true), alone_peer = name_of(over_alone.server, true);

    fidelity_ready();
    fidelity_await_go();

    expect_state(client_done.client, TCP_FIN_WAIT2, "the half-closed client");
    expect_state(client_done.server, TCP_CLOSE_WAIT, "its server");
    expect_state(closed.server, closed_state, "the server of a closed client");
    expect_state(both_done.client, both_state, "the client that closed first");
    expect(client_done.server, "to the server");
    expect_end(client_done.server, "the server after the client has finished");
    expect(client_done.client, "to the client");
    expect_name(name_of(over.server, false), over_name, "a connection that is over");
    expect_name(name_of(over.server, true), over_peer, "a connection that is over, its peer");
    expect_name(name_of(over_alone.server, true), alone_peer, "the peer of a connection that is over and half forgotten");
    expect(over.server, "the last");
    expect_end(over.server, "a connection that is over");
    expect_end(over.client, "a connection that is over, the client");
    expect_broken(over_alone.server, "a connection that is over and half forgotten");
    expect_nothing(client_done.client, "the client that only writes no more");
    expect_broken(client_done.client, "the finished client");
    put(client_done.server, "more");
    expect(client_done.client, "more");
    MUST(shutdown(client_done.server, SHUT_WR));
    expect_end(client_done.client, "after the server has finished as well");

    expect(server_done.client, "farewell");
    expect_end(server_done.client, "the client after the server has finished");
    put(server_done.client, "late");
    expect(server_done.server, "late");

    expect(both_done.server, "both");
    expect_end(both_done.server, "both finished, the server");
    expect_end(both_done.client, "both finished, the client");
    expect_broken(both_done.server, "both finished");

    expect_end(deaf.client, "the deaf client");
    put(deaf.client, "speaks");
    expect(deaf.server, "speaks");

    struct pollfd state = { closed.server, POLLIN | POLLRDHUP, 0 };
    CHECK(poll(&state, 1, 0) == 1 && state.revents == (POLLIN | POLLRDHUP), "the closed connection polls as %#x", state.revents);
    struct sockaddr_in peer;
    socklen_t size = sizeof peer;
    MUST(getpeername(closed.server, (void *)&peer, &size));
    CHECK(peer.sin_addr.s_addr == htonl(INADDR_LOOPBACK) && peer.sin_port, "who has closed is forgotten");
    expect(closed.server, "before I go");
    expect_end(closed.server, "a closed client");
    expect_broken_soon(closed.server, "a closed client");
    expect_end(closed_empty.server, "a client closed without a word");
    char byte;
    CHECK(recv(dropped.server, &byte, 1, 0) < 0 && errno == ECONNRESET, "a dropped connection: %s", strerror(errno));
    expect(read_half.server, "second");
    put(read_half.server, "yes");
    expect(read_half.client, "yes");
    expect_end(heard_end.server, "an end heard before");
    put(heard_end.server, "still");
    expect(heard_end.client, "still");
    fidelity_pass();
}
