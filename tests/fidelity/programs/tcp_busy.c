/*
 * TCP connections at work while the fork is made: questions and answers one after the other, and a stream that is always full. Not a byte is lost
 * or doubled.
 */
#include "fidelity.h"

#include <netinet/in.h>
#include <sys/socket.h>

#define EXCHANGES_AFTER 200
#define BYTES_AFTER (4 << 20)

struct shared {
    volatile int stop;          /* reached: what is under way may end */
    volatile uint64_t exchanges, streamed;
    volatile int wrong;
};

static struct shared *shared;

static int listen_at(uint16_t port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
    MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(fd, (void *)&address, sizeof address));
    MUST(listen(fd, 8));
    return fd;
}

static int reach(uint16_t port)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(fd, (void *)&address, sizeof address));
    return fd;
}

/* At full speed for a while, then more slowly: other programs want to run, too. */
static void breathe(double started, long milliseconds)
{
    if (fidelity_now(CLOCK_MONOTONIC) - started > FIDELITY_SPIN_SECONDS)
        fidelity_sleep_ms(milliseconds);
}

static _Noreturn void answer(int fd)
{
    uint64_t number;
    while (recv(fd, &number, sizeof number, MSG_WAITALL) == sizeof number) {
        number++;
        if (send(fd, &number, sizeof number, MSG_NOSIGNAL) != sizeof number)
            break;
    }
    _exit(0);
}

static _Noreturn void ask(int fd)
{
    double started = fidelity_now(CLOCK_MONOTONIC);
    for (uint64_t number = 1; !shared->stop; number += 2) {
        uint64_t got = 0;
        if (send(fd, &number, sizeof number, MSG_NOSIGNAL) != sizeof number || recv(fd, &got, sizeof got, MSG_WAITALL) != sizeof got
            || got != number + 1) {
            shared->wrong = 1;
            break;
        }
        shared->exchanges++;
        breathe(started, 5);
    }
    _exit(0);
}

/* Byte number n of the stream. */
static unsigned char pattern(uint64_t at)
{
    return (unsigned char)(at * 2654435761u >> 24 ^ at >> 5);
}

static _Noreturn void flood(int fd)
{
    static unsigned char block[50000];
    for (uint64_t at = 0;; ) {
        for (size_t i = 0; i < sizeof block; i++)
            block[i] = pattern(at + i);
        for (size_t sent = 0; sent < sizeof block;) {
            ssize_t done = send(fd, block + sent, sizeof block - sent, MSG_NOSIGNAL);
            if (done <= 0)
                _exit(0);
            sent += (size_t)done;
        }
        at += sizeof block;
    }
}

static _Noreturn void drink(int fd)
{
    static unsigned char block[30000];
    double started = fidelity_now(CLOCK_MONOTONIC);
    uint64_t at = 0;
    while (!shared->stop) {
        ssize_t got = recv(fd, block, sizeof block, 0);
        for (ssize_t i = 0; i < got; i++)
            if (block[i] != pattern(at + (uint64_t)i))
                shared->wrong = 2;
        if (got <= 0)
            shared->wrong = 3;
        if (shared->wrong)
            break;
        at += (uint64_t)got;
        shared->streamed = at;
        breathe(started, 2);
    }
    _exit(0);
}


int main(void)
{
    shared = MUST(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    int listener = listen_at(18371);
    int asking = reach(18371), answering = MUST(accept(listener, NULL, NULL));
    int flooding = reach(18371), drinking = MUST(accept(listener, NULL, NULL));
    pid_t children[4];
    void (*const works[4])(int) = { ask, answer, flood, drink };
    int const fds[4] = { asking, answering, flooding, drinking };
    for (int i = 0; i < 4; i++) {
        children[i] = fidelity_fork();
        if (children[i] == 0) {
            for (int k = 0; k < 4; k++)
                if (k != i)
                    close(fds[k]);
            close(listener);
            works[i](fds[i]);
        }
    }
    for (int i = 0; i < 4; i++)
        close(fds[i]);
    while (shared->exchanges < 10 || shared->streamed < 1 << 20)
        fidelity_sleep_ms(20);

    fidelity_ready();
    fidelity_await_go();

    uint64_t exchanges = shared->exchanges, streamed = shared->streamed;
    for (int i = 0; i < 1000 && !shared->wrong && (shared->exchanges < exchanges + EXCHANGES_AFTER || shared->streamed < streamed + BYTES_AFTER); i++)
        fidelity_sleep_ms(20);
    CHECK(shared->wrong == 0, "a connection went wrong (%d) after %lu exchanges and %lu bytes", shared->wrong, shared->exchanges, shared->streamed);
    CHECK(shared->exchanges >= exchanges + EXCHANGES_AFTER, "only %lu exchanges more", shared->exchanges - exchanges);
    CHECK(shared->streamed >= streamed + BYTES_AFTER, "only %lu bytes more", shared->streamed - streamed);
    shared->stop = 1;
    for (int i = 0; i < 4; i++)
        fidelity_expect_exit(children[i], 0);
    fidelity_pass();
}
