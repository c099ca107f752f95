/*
 * Somebody outside the workspace connects and sends descriptors: ends of two pipes, a terminal. In a branch each comes to a clean end behind what is
 * unread; the source's go on.
 */
#include "../fidelity.h"

#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <termios.h>

#define PATH "/tmp/fidelity-outside"

static int serve(int type, const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    strcpy(address.sun_path, path);
    int fd = MUST(socket(AF_UNIX, type, 0));
    MUST(bind(fd, (void *)&address, sizeof address));
    if (type != SOCK_DGRAM)
        MUST(listen(fd, 5));
    return fd;
}

static void receive(int fd, int *fds, size_t count)
{
    union { char bytes[CMSG_SPACE(8 * sizeof(int))]; struct cmsghdr align; } control;
    char byte;
    struct iovec io = { &byte, 1 };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    MUST((int)recvmsg(fd, &header, 0));
    CHECK(CMSG_FIRSTHDR(&header) && CMSG_FIRSTHDR(&header)->cmsg_len == CMSG_LEN(count * sizeof(int)), "not %zu descriptors", count);
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&header)), count * sizeof(int));
}

static void expect(int fd, const char *text)
{
    char got[64] = "";
    ssize_t size = read(fd, got, strlen(text));
    CHECK(size == (ssize_t)strlen(text) && strcmp(got, text) == 0, "fd %d: read \"%s\" (%zd), not \"%s\"", fd, got, size, text);
}

static void check_source(int stream, int datagram, const int *fds)
{
    char byte;
    CHECK(recv(stream, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "the connection has ended");
    CHECK(write(stream, "still here", 10) == 10, "the connection cannot send");
    CHECK(write(fds[1], "still here", 10) == 10, "the pipe cannot be written to");
    CHECK(read(fds[0], &byte, 1) == -1 && errno == EAGAIN, "the pipe has ended");
    CHECK(read(fds[2], &byte, 1) == -1 && errno == EAGAIN, "the terminal has ended");
    CHECK(recv(datagram, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "there is one more datagram");
}

static void check_branch(int stream, int datagram, const int *fds)
{
    char byte;
    CHECK(read(stream, &byte, 1) == 0, "the connection has no end");
    CHECK(send(stream, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "the connection can send");
    CHECK(read(fds[0], &byte, 1) == 0, "the pipe has no end");
    CHECK(write(fds[1], "x", 1) == -1 && errno == EPIPE, "the pipe that nobody reads can be written to");
    ssize_t got = read(fds[2], &byte, 1);
    CHECK(got == 0 || (got == -1 && errno == EIO), "the terminal has not hung up: %zd %s", got, strerror(errno));
    CHECK(recv(datagram, &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN, "there is one more datagram");
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    int listener = serve(SOCK_STREAM, PATH), datagram = serve(SOCK_DGRAM, PATH ".dgram"), fds[3];
    fidelity_write("listening", "yes");
    int stream = MUST(accept(listener, NULL, NULL));
    receive(stream, fds, 3);
    MUST(fcntl(fds[0], F_SETFL, O_NONBLOCK));
    MUST(fcntl(fds[2], F_SETFL, O_NONBLOCK | O_RDWR));
    struct pollfd unread = { stream, POLLIN, 0 };
    CHECK(poll(&unread, 1, 10000) == 1, "nothing was sent");

    fidelity_ready();
    fidelity_await_go();

    expect(stream, "unread bytes");
    expect(datagram, "a datagram");
    expect(fds[0], "in the pipe");
    if (fidelity_in_branch())
        check_branch(stream, datagram, fds);
    else
        check_source(stream, datagram, fds);
    fidelity_pass();
}
