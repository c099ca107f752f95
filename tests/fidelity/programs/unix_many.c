/* Thousands of connections, all in one epoll set: the cost of a fork must grow with their number, not with its square. */
#include "fidelity.h"

#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PAIRS 1500
#define CLIENTS 700

static int set;

static void watch(int fd)
{
    struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.fd = fd };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

static void check(int from, int to, int number)
{
    int got = -1;
    CHECK(recv(to, &got, sizeof got, MSG_DONTWAIT) == sizeof got && got == number, "connection %d: read %d", number, got);
    CHECK(send(from, &number, sizeof number, MSG_DONTWAIT) == sizeof number, "connection %d: cannot send", number);
    CHECK(recv(to, &got, sizeof got, MSG_DONTWAIT) == sizeof got && got == number, "connection %d: its ends were mixed up", number);
}

int main(void)
{
    static int pairs[PAIRS][2], clients[CLIENTS], served[CLIENTS];
    struct rlimit limit;
    MUST(getrlimit(RLIMIT_NOFILE, &limit));
    limit.rlim_cur = limit.rlim_max;
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    set = MUST(epoll_create1(0));
    for (int i = 0; i < PAIRS; i++) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]));
        MUST((int)write(pairs[i][0], &i, sizeof i));
        watch(pairs[i][1]);
    }
    struct sockaddr_un address = { AF_UNIX, "/tmp/fidelity-many" };
    unlink(address.sun_path);
    int listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    MUST(bind(listener, (void *)&address, sizeof address));
    MUST(listen(listener, 16));
    for (int i = 0; i < CLIENTS; i++) {
        clients[i] = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
        MUST(connect(clients[i], (void *)&address, sizeof address));
        served[i] = MUST(accept(listener, NULL, NULL));
        int number = PAIRS + i;
        MUST((int)write(clients[i], &number, sizeof number));
        watch(served[i]);
    }

    fidelity_ready();
    fidelity_await_go();

    static struct epoll_event events[PAIRS + CLIENTS];
    int count = MUST(epoll_wait(set, events, PAIRS + CLIENTS, 0));
    CHECK(count == PAIRS + CLIENTS, "%d of %d connections are ready", count, PAIRS + CLIENTS);
    for (int i = 0; i < PAIRS; i++)
        check(pairs[i][0], pairs[i][1], i);
    for (int i = 0; i < CLIENTS; i++)
        check(clients[i], served[i], PAIRS + i);
    fidelity_pass();
}
