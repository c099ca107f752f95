/* epoll: data, edge-triggered and disabled entries, numbers closed or given to others since, nested sets, a set inherited by fork. */
#include "fidelity.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

static void add(int set, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = { .events = events, .data.u64 = data };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

static void raise_event(int fd)
{
    uint64_t one = 1;
    CHECK(write(fd, &one, sizeof one) == sizeof one, "cannot write to an eventfd");
}

/* The data of the only entry that is ready, or 0. */
static uint64_t ready(int set)
{
    struct epoll_event events[8];
    int count = MUST(epoll_wait(set, events, 8, 0));
    CHECK(count <= 1, "%d entries are ready", count);
    return count ? events[0].data.u64 : 0;
}

static int entries(int set)
{
    char path[64];
    int count = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", set);
    for (char *at = fidelity_file(path); (at = strstr(at, "tfd:")); at++)
        count++;
    return count;
}

int main(void)
{
    int level = MUST(eventfd(0, EFD_NONBLOCK)), edge = MUST(eventfd(0, EFD_NONBLOCK)), once = MUST(eventfd(0, EFD_NONBLOCK));
    int set = MUST(epoll_create1(EPOLL_CLOEXEC)), inner = MUST(epoll_create1(0)), outer = MUST(epoll_create1(0));
    add(set, level, EPOLLIN, 0x1122334455667788);
    add(set, edge, EPOLLIN | EPOLLET, 2);
    add(set, once, EPOLLIN | EPOLLONESHOT, 3);
    raise_event(once);
    CHECK(ready(set) == 3, "the one-shot entry was not reported");   /* disabled from now on */

    /* Under a number that is closed, and under one that belongs to another file by now. */
    int kept = MUST(eventfd(0, EFD_NONBLOCK)), other = MUST(epoll_create1(0));
    int closed = MUST(dup(kept)), reused = MUST(fcntl(kept, F_DUPFD, 700));
    add(other, closed, EPOLLIN, 10);
    add(other, reused, EPOLLIN, 11);
    close(closed);
    int newcomer = MUST(eventfd(0, EFD_NONBLOCK));
    MUST(dup3(newcomer, reused, 0));
    add(other, reused, EPOLLIN, 12);    /* the same number twice, for two files */

    int leaf = MUST(eventfd(0, EFD_NONBLOCK));
    add(outer, inner, EPOLLIN, 20);
    add(inner, leaf, EPOLLIN | EPOLLET, 21);

    int shared = MUST(epoll_create1(0)), fork_event = MUST(eventfd(0, EFD_NONBLOCK)), done[2];
    add(shared, fork_event, EPOLLIN | EPOLLEXCLUSIVE, 30);
    MUST(pipe(done));
    pid_t child = fidelity_fork();
    if (child == 0) {
        struct epoll_event event;
        CHECK(epoll_wait(shared, &event, 1, -1) == 1 && event.data.u64 == 30, "the child got another entry");
        _exit(7);
    }
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    int queues = MUST(epoll_create1(0));
    add(queues, pair[1], EPOLLIN | EPOLLRDHUP | EPOLLET, 40);
    MUST((int)write(pair[0], "x", 1));

    fidelity_ready();
    fidelity_await_go();

    CHECK(entries(set) == 3 && entries(other) == 3 && entries(inner) == 1 && entries(outer) == 1, "%d, %d, %d, %d entries", entries(set), entries(other),
          entries(inner), entries(outer));
    CHECK(ready(set) == 0, "an entry is ready too early");
    raise_event(level);
    CHECK(ready(set) == 0x1122334455667788 && ready(set) == 0x1122334455667788, "the level-triggered entry is not ready");
    struct epoll_event change = { .events = EPOLLIN };
    uint64_t value;
    CHECK(read(level, &value, 8) == 8 && value == 1, "read the level");
    raise_event(edge);
    CHECK(ready(set) == 2 && ready(set) == 0, "the edge-triggered entry is wrong");
    change = (struct epoll_event){ .events = EPOLLIN | EPOLLONESHOT, .data.u64 = 33 };
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, once, &change));
    CHECK(ready(set) == 33 && ready(set) == 0, "the one-shot entry cannot be armed again");

    raise_event(newcomer);
    CHECK(ready(other) == 12, "the newcomer's entry is not ready");
    MUST(epoll_ctl(other, EPOLL_CTL_DEL, reused, NULL));
    raise_event(kept);
    struct epoll_event events[4];
    int count = MUST(epoll_wait(other, events, 4, 0));
    CHECK(count == 2 && events[0].data.u64 + events[1].data.u64 == 21, "%d entries of the kept file are ready", count);

    CHECK(ready(outer) == 0, "the outer set is ready too early");
    raise_event(leaf);
    CHECK(ready(outer) == 20, "the outer set is not ready");
    CHECK(ready(inner) == 21 && ready(inner) == 0, "the inner set is wrong");
    raise_event(fork_event);
    fidelity_expect_exit(child, 7);
    CHECK(ready(queues) == 40, "the socket with unread bytes is not ready");
    fidelity_pass();
}
