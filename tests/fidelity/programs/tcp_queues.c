/* TCP between two ends in the workspace: unread and undelivered bytes both ways, over every form of address; urgent data; dead connections. */
#include "tcp_filled.h"

#include <arpa/inet.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#ifndef SIOCOUTQ
#define SIOCOUTQ TIOCOUTQ
#endif
#define MANY 200

struct pair { int client, server; };

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static socklen_t make_address(union address *address, const char *text, uint16_t port)
{
    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, text, &address->v4.sin_addr) == 1) {
        address->v4.sin_family = AF_INET;
        address->v4.sin_port = htons(port);
        return sizeof address->v4;
    }
    inet_pton(AF_INET6, text, &address->v6.sin6_addr);
    address->v6.sin6_family = AF_INET6;
    address->v6.sin6_port = htons(port);
    return sizeof address->v6;
}

static int make_listener(const char *at, uint16_t port)
{
    union address address;
    socklen_t size = make_address(&address, at, port);
    int fd = MUST(socket(address.any.sa_family, SOCK_STREAM, 0)), on = 1;
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(fd, &address.any, size));
    MUST(listen(fd, 512));
    return fd;
}

static struct pair make_pair(int listener, const char *to, uint16_t port)
{
    union address address;
    socklen_t size = make_address(&address, to, port);
    struct pair pair = { .client = MUST(socket(address.any.sa_family, SOCK_STREAM, 0)) };
    MUST(connect(pair.client, &address.any, size));
    pair.server = MUST(accept(listener, NULL, NULL));
    return pair;
}

static void put(int fd, const char *text)
{
    CHECK(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t)strlen(text), "cannot send \"%s\" on %d: %s", text, fd, strerror(errno));
}

/* At once: what was there before the fork must be there now; and nothing more. */
static void expect(int fd, const char *text)
{
    char got[64] = "";
    ssize_t size = recv(fd, got, sizeof got - 1, MSG_DONTWAIT);
    CHECK(size == (ssize_t)strlen(text) && strcmp(got, text) == 0, "fd %d: got %zd bytes \"%s\", not \"%s\"", fd, size, got, text);
    size = recv(fd, got, 1, MSG_DONTWAIT);
    CHECK(size < 0 && errno == EAGAIN, "fd %d: there is more after \"%s\": %zd, %s", fd, text, size, strerror(errno));
}

static void expect_soon(int fd, const char *text)
{
    char got[64] = "";
    size_t used = 0;
    while (used < strlen(text)) {
        struct pollfd state = { fd, POLLIN, 0 };
        CHECK(poll(&state, 1, 20000) == 1, "fd %d: \"%s\" does not come, only \"%s\"", fd, text, got);
        used += (size_t)MUST(recv(fd, got + used, strlen(text) - used, 0));
    }
    CHECK(strcmp(got, text) == 0, "fd %d: got \"%s\", not \"%s\"", fd, got, text);
}

static void check_both_ways(struct pair pair, const char *what)
{
    put(pair.client, what);
    expect_soon(pair.server, what);
    put(pair.server, what);
    expect_soon(pair.client, what);
}

static void expect_name(int fd, int peer, const char *text, uint16_t port)
{
    union address got, wanted;
    socklen_t size = sizeof got, wanted_size = make_address(&wanted, text, port);
    MUST(peer ? getpeername(fd, &got.any, &size) : getsockname(fd, &got.any, &size));
    CHECK(size == wanted_size && memcmp(&got, &wanted, size) == 0, "fd %d: %s address, port %u: not %s port %u", fd, peer ? "peer" : "own",
          ntohs(got.v4.sin_port), text, port);
}

/*
 * The kernel enlarges a send buffer when the other side acknowledges something, if it must 0.2 s after the last byte: from 2.5 MB to 4 MB, and then a
 * connection that was full takes more, forked or not. One whose size was chosen stays, and so does this one: far more is queued than it allows.
 */
static void hold_send_buffer(int fd)
{
    int size = 128 << 10;
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
}

int main(void)
{
    int v4 = make_listener("0.0.0.0", 18201), dual = make_listener("::", 18202), v6 = make_listener("::1", 18203);
    struct pair plain = make_pair(v4, "127.0.0.1", 18201), other = make_pair(v4, "127.8.9.10", 18201);
    struct pair six = make_pair(v6, "::1", 18203), mapped = make_pair(dual, "::ffff:127.0.0.1", 18202), mixed = make_pair(dual, "127.0.0.1", 18202);
    struct pair *const all[] = { &plain, &other, &six, &mapped, &mixed };
    for (size_t i = 0; i < 5; i++) {
        put(all[i]->client, "question");
        put(all[i]->server, "answer");
    }
    struct pair full = make_pair(v4, "127.0.0.1", 18201), both_full = make_pair(v6, "::1", 18203);
    int reuse = 1;
    MUST(setsockopt(full.client, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse));
    uint64_t total = tcp_fill(full.client, 0), up = tcp_fill(both_full.client, 0), down = tcp_fill(both_full.server, 0);
    hold_send_buffer(full.client);
    struct pair large = make_pair(v4, "127.0.0.1", 18201);
    int size = 8 << 20;
    MUST(setsockopt(large.server, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    uint64_t large_total = tcp_fill(large.client, 0);
    struct pair urgent = make_pair(v4, "127.0.0.1", 18201);
    put(urgent.client, "before");
    MUST((int)send(urgent.client, "!", 1, MSG_OOB));
    put(urgent.client, "after");
    struct pair corked = make_pair(v4, "127.0.0.1", 18201);
    int on = 1, off = 0;
    MUST(setsockopt(corked.client, IPPROTO_TCP, TCP_CORK, &on, sizeof on));
    put(corked.client, "held back");
    /* A reset after data, and one that the program has been told of. */
    struct pair reset = make_pair(v4, "127.0.0.1", 18201);
    struct linger at_once = { 1, 0 };
    put(reset.client, "last words");
    MUST(setsockopt(reset.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    close(reset.client);
    struct pair told = make_pair(v4, "127.0.0.1", 18201);
    MUST(setsockopt(told.client, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
    close(told.client);
    char byte;
    CHECK(recv(told.server, &byte, 1, 0) < 0 && errno == ECONNRESET, "no reset");
    int refused = MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    union address nobody;
    socklen_t nobody_size = make_address(&nobody, "127.0.0.1", 18299);
    CHECK(connect(refused, &nobody.any, nobody_size) < 0, "somebody listens");
    struct pollfd state = { refused, POLLOUT, 0 };
    CHECK(poll(&state, 1, 5000) == 1 && state.revents & POLLERR, "not refused: %#x", state.revents);
    struct pair many[MANY];
    for (int i = 0; i < MANY; i++) {
        many[i] = make_pair(v4, "127.0.0.1", 18201);
        put(i % 2 ? many[i].client : many[i].server, "one of many");
    }
    int set = MUST(epoll_create1(0));
    struct epoll_event quiet = { .events = EPOLLIN | EPOLLET | EPOLLRDHUP, .data.u64 = 7 };
    struct pair silent = make_pair(v4, "127.0.0.1", 18201);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, silent.client, &quiet));
    union address client_name;
    socklen_t name_size = sizeof client_name;
    MUST(getsockname(plain.client, &client_name.any, &name_size));

    fidelity_ready();
    fidelity_await_go();

    expect_name(plain.client, 1, "127.0.0.1", 18201);
    expect_name(plain.server, 0, "127.0.0.1", 18201);
    expect_name(plain.client, 0, "127.0.0.1", ntohs(client_name.v4.sin_port));
    expect_name(other.server, 0, "127.8.9.10", 18201);
    expect_name(six.server, 0, "::1", 18203);
    expect_name(mapped.server, 0, "::ffff:127.0.0.1", 18202);
    expect_name(mixed.client, 1, "127.0.0.1", 18202);
    CHECK(epoll_wait(set, &quiet, 1, 0) == 0, "something happened on a silent connection: %#x", quiet.events);
    for (size_t i = 0; i < 5; i++) {
        int waiting = 0, unsent = -1;
        MUST(ioctl(all[i]->server, FIONREAD, &waiting));
        MUST(ioctl(all[i]->client, SIOCOUTQ, &unsent));
        CHECK(waiting == 8 && unsent == 0, "%d bytes wait, %d are on their way", waiting, unsent);
        expect(all[i]->server, "question");
        expect(all[i]->client, "answer");
        check_both_ways(*all[i], "again");
    }
    state = (struct pollfd){ full.client, POLLOUT, 0 };
    CHECK(poll(&state, 1, 0) == 0, "a full connection takes more: %#x", state.revents);
    int repair = -1;
    socklen_t option_size = sizeof repair;
    MUST(getsockopt(full.client, IPPROTO_TCP, TCP_REPAIR, &repair, &option_size));
    MUST(getsockopt(full.client, SOL_SOCKET, SO_REUSEADDR, &reuse, &option_size));
    CHECK(repair == 0 && reuse == 1, "the fork has left traces: TCP_REPAIR is %d, SO_REUSEADDR %d", repair, reuse);
    tcp_drain(full.server, full.client, total, "full");
    check_both_ways(full, "flows");
    tcp_drain(both_full.client, both_full.server, down, "full downwards");
    tcp_drain(both_full.server, both_full.client, up, "full upwards");
    check_both_ways(both_full, "flows");
    tcp_drain(large.server, large.client, large_total, "large");
    check_both_ways(large, "flows");
    state = (struct pollfd){ urgent.server, POLLPRI, 0 };
    CHECK(poll(&state, 1, 0) == 1 && state.revents & POLLPRI, "no urgent data");
    expect_soon(urgent.server, "before");
    int mark = 0;
    CHECK(ioctl(urgent.server, SIOCATMARK, &mark) == 0 && mark == 1, "not at the mark");
    CHECK(recv(urgent.server, &byte, 1, MSG_OOB) == 1 && byte == '!', "the urgent byte is lost: %s", strerror(errno));
    expect(urgent.server, "after");
    check_both_ways(urgent, "normal");
    MUST(setsockopt(corked.client, IPPROTO_TCP, TCP_CORK, &off, sizeof off));
    expect_soon(corked.server, "held back");
    char text[32] = "";
    CHECK(recv(reset.server, text, sizeof text, 0) == 10 && strcmp(text, "last words") == 0, "the last words are lost: \"%s\"", text);
    CHECK(recv(reset.server, text, 1, 0) < 0 && errno == ECONNRESET, "no reset after the last words: %s", strerror(errno));
    CHECK(recv(told.server, text, 1, 0) == 0, "told twice: %s", strerror(errno));
    CHECK(send(told.server, "x", 1, MSG_NOSIGNAL) < 0 && errno == EPIPE, "writing to a dead connection: %s", strerror(errno));
    int number = 0;
    socklen_t number_size = sizeof number;
    MUST(getsockopt(refused, SOL_SOCKET, SO_ERROR, &number, &number_size));
    CHECK(number == ECONNREFUSED, "the refused connection reports %s", strerror(number));
    for (int i = 0; i < MANY; i++) {
        expect(i % 2 ? many[i].server : many[i].client, "one of many");
        check_both_ways(many[i], "still");
    }
    put(silent.server, "now");
    CHECK(epoll_wait(set, &quiet, 1, 20000) == 1 && quiet.data.u64 == 7 && quiet.events == EPOLLIN, "epoll on a kept connection: %#x", quiet.events);
    check_both_ways(make_pair(v4, "127.0.0.1", 18201), "new");
    fidelity_pass();
}
