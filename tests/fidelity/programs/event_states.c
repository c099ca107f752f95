/* Event descriptors and pipes in less usual states: full eventfds with blocked writers, pipes from splice and vmsplice, one end outside, FIFO openings. */
#include "fidelity.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define BASE "/tmp/fidelity-events"

static pid_t blocked_adder(int fd)
{
    pid_t child = fidelity_fork();
    if (child > 0)
        return child;
    uint64_t one = 1;
    CHECK(write(fd, &one, sizeof one) == sizeof one, "the blocked writer of an eventfd: %s", strerror(errno));
    _exit(0);
}

static pid_t blocked_writer(int fd)
{
    pid_t child = fidelity_fork();
    if (child > 0)
        return child;
    char block[4096];
    memset(block, 'b', sizeof block);
    CHECK(write(fd, block, sizeof block) == sizeof block, "the blocked writer of a pipe: %s", strerror(errno));
    _exit(0);
}

static pid_t blocked_reader(int fd)
{
    pid_t child = fidelity_fork();
    if (child > 0)
        return child;
    char got[8] = "";
    CHECK(read(fd, got, sizeof got) == 4 && strcmp(got, "late") == 0, "the blocked reader of a pipe got \"%s\"", got);
    _exit(0);
}

static void expect(int fd, const char *text)
{
    char got[64] = "";
    ssize_t size = read(fd, got, strlen(text));
    CHECK(size == (ssize_t)strlen(text) && strcmp(got, text) == 0, "read \"%s\" (%zd), not \"%s\"", got, size, text);
}

static int ready_entries(int set, struct epoll_event *events)
{
    return MUST(epoll_wait(set, events, 8, 0));
}

int main(void)
{
    uint64_t most = UINT64_MAX - 1, value;
    int full = MUST(eventfd(0, 0));
    MUST((int)write(full, &most, sizeof most));
    pid_t adder = blocked_adder(full);

    int spliced[2], given[2], large[2], partly[2], waiting[2], half[2];
    MUST(mkdir(BASE, 0755));
    int file = MUST(open(BASE "/file", O_RDWR | O_CREAT, 0600));
    MUST((int)write(file, "from a file's page", 18));
    loff_t at = 5;
    MUST(pipe(spliced));
    MUST((int)splice(file, &at, spliced[1], NULL, 6, 0));
    MUST(pipe(given));
    static char page[4096] __attribute__((aligned(4096)));
    strcpy(page, "a page of mine");
    struct iovec io = { page, 14 };
    MUST((int)vmsplice(given[1], &io, 1, 0));
    MUST(pipe(large));
    MUST(fcntl(large[1], F_SETPIPE_SZ, 1 << 20));
    MUST(fcntl(large[1], F_SETFL, O_NONBLOCK));
    char block[4096];
    memset(block, 'b', sizeof block);
    int filled = 0;
    while (write(large[1], block, sizeof block) == sizeof block)
        filled += (int)sizeof block;
    MUST(fcntl(large[1], F_SETFL, 0));
    pid_t writer = blocked_writer(large[1]);
    MUST(pipe(partly));
    MUST((int)write(partly[1], "gone stays", 10));
    expect(partly[0], "gone ");
    MUST(pipe(waiting));
    pid_t reader = blocked_reader(waiting[0]);
    MUST(mkfifo(BASE "/fifo", 0600));
    int fifo_reader = MUST(open(BASE "/fifo", O_RDONLY | O_NONBLOCK)), fifo_writer = MUST(open(BASE "/fifo", O_WRONLY)), fifo_both = MUST(open(BASE "/fifo", O_RDWR));
    MUST((int)write(fifo_writer, "named", 5));
    MUST(mkfifo(BASE "/lonely", 0600));
    int lonely = MUST(open(BASE "/lonely", O_RDONLY | O_NONBLOCK));

    /* Sets, five deep; the innermost watches both ends of a socket pair, one with an edge that was seen already. */
    int sets[5], seen = MUST(eventfd(1, 0)), sockets[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    for (int i = 0; i < 5; i++) {
        sets[i] = MUST(epoll_create1(0));
        struct epoll_event inner = { .events = EPOLLIN, .data.u64 = (uint64_t)i };
        if (i)
            MUST(epoll_ctl(sets[i], EPOLL_CTL_ADD, sets[i - 1], &inner));
    }
    struct epoll_event exclusive = { .events = EPOLLIN | EPOLLEXCLUSIVE, .data.u64 = 70 }, edge = { .events = EPOLLIN | EPOLLET, .data.u64 = 71 };
    MUST(epoll_ctl(sets[0], EPOLL_CTL_ADD, sockets[0], &exclusive));
    int edges = MUST(epoll_create1(0));
    MUST(epoll_ctl(edges, EPOLL_CTL_ADD, seen, &edge));
    struct epoll_event events[8];
    CHECK(ready_entries(edges, events) == 1 && ready_entries(edges, events) == 0, "the edge is not seen");
    struct { uint32_t microseconds; uint16_t budget; uint8_t prefer, pad; } busy = { 50, 8, 1, 0 }, busy_now = { 0 };
    bool can_busy_poll = ioctl(edges, _IOW(0x8a, 1, struct { char bytes[8]; }), &busy) == 0;
    MUST(pipe(half));
    close(half[1]);
    fidelity_sleep_ms(300);

    fidelity_ready();
    fidelity_await_go();

    CHECK(read(full, &value, sizeof value) == sizeof value && value == most, "the full eventfd held %lu", value);
    fidelity_expect_exit(adder, 0);
    CHECK(read(full, &value, sizeof value) == sizeof value && value == 1, "the blocked writer added %lu", value);
    expect(spliced[0], "a file");
    expect(given[0], "a page of mine");
    CHECK(fcntl(large[0], F_GETPIPE_SZ) == 1 << 20, "the pipe holds %d", fcntl(large[0], F_GETPIPE_SZ));
    int total = 0, got;
    while (total < filled + 4096 && (got = MUST((int)read(large[0], block, sizeof block))) > 0) {
        for (int i = 0; i < got; i++)
            CHECK(block[i] == 'b', "byte %d of the full pipe is %d", total + i, block[i]);
        total += got;
    }
    fidelity_expect_exit(writer, 0);
    expect(partly[0], "stays");
    MUST((int)write(waiting[1], "late", 4));
    fidelity_expect_exit(reader, 0);
    expect(fifo_reader, "named");
    close(fifo_writer);
    CHECK(read(fifo_reader, block, 1) == -1 && errno == EAGAIN, "the FIFO that is open for both ends");
    close(fifo_both);
    CHECK(read(fifo_reader, block, 1) == 0, "the FIFO does not end");
    CHECK(read(lonely, block, 1) == 0, "the FIFO without a writer: %s", strerror(errno));
    int late = MUST(open(BASE "/lonely", O_WRONLY | O_NONBLOCK));
    MUST((int)write(late, "at last", 7));
    expect(lonely, "at last");
    CHECK(read(half[0], block, 1) == 0, "the pipe without a writer does not end");

    CHECK(ready_entries(sets[4], events) == 0, "the outermost set is ready too early");
    MUST((int)write(sockets[1], "x", 1));
    CHECK(ready_entries(sets[4], events) == 1 && events[0].data.u64 == 4, "the outermost set is not ready");
    CHECK(ready_entries(sets[0], events) == 1 && events[0].data.u64 == 70, "the innermost set is not ready");
    if (can_busy_poll) {
        MUST(ioctl(edges, _IOR(0x8a, 2, struct { char bytes[8]; }), &busy_now));
        CHECK(memcmp(&busy, &busy_now, sizeof busy) == 0, "the set polls for %u us, not %u", busy_now.microseconds, busy.microseconds);
    }
    value = 1;
    ready_entries(edges, events);       /* once more is allowed in a branch */
    CHECK(ready_entries(edges, events) == 0, "the edge stays");
    MUST((int)write(seen, &value, sizeof value));
    CHECK(ready_entries(edges, events) == 1 && events[0].data.u64 == 71, "a new edge is not reported");
    fidelity_pass();
}
