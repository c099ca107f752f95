/* Descriptors and credentials in flight: held by nobody but the queue, queues within queues, pieces of a stream, SO_PEEK_OFF kept. */
#include "fidelity.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

union control {
    struct cmsghdr align;
    char bytes[256];
};

static void send_descriptors(int fd, const char *text, const int *fds, int count)
{
    union control control = { 0 };
    struct iovec io = { (char *)text, strlen(text) };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = CMSG_SPACE((size_t)count * sizeof(int)) };
    struct cmsghdr *part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(part), fds, (size_t)count * sizeof(int));
    MUST((int)sendmsg(fd, &header, 0));
}

struct received {
    char text[64];
    int fds[8], fd_count;
    bool has_credentials;
    struct ucred credentials;
};

static struct received receive(int fd, size_t room)
{
    struct received got = { 0 };
    union control control;
    struct iovec io = { got.text, room };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    CHECK(recvmsg(fd, &header, MSG_DONTWAIT) >= 0, "fd %d: nothing to receive: %s", fd, strerror(errno));
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&header); part; part = CMSG_NXTHDR(&header, part)) {
        if (part->cmsg_type == SCM_RIGHTS) {
            got.fd_count = (int)((part->cmsg_len - CMSG_LEN(0)) / sizeof(int));
            memcpy(got.fds, CMSG_DATA(part), (size_t)got.fd_count * sizeof(int));
        } else if (part->cmsg_type == SCM_CREDENTIALS) {
            got.has_credentials = true;
            memcpy(&got.credentials, CMSG_DATA(part), sizeof got.credentials);
        }
    }
    return got;
}

static void expect(const struct received *got, const char *text, int fd_count)
{
    CHECK(strcmp(got->text, text) == 0 && got->fd_count == fd_count, "got \"%s\" with %d descriptors, expected \"%s\" with %d", got->text,
          got->fd_count, text, fd_count);
}

int main(void)
{
    int stream[2], nested[2], carrier[2], private[2], credentials[2], peeked[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, stream));
    int event = MUST(eventfd(41, 0)), file = MUST(open("/tmp/fidelity-queued", O_RDWR | O_CREAT | O_TRUNC, 0600));
    MUST((int)write(file, "0123456789", 10));
    MUST((int)lseek(file, 4, SEEK_SET));
    MUST((int)write(stream[0], "plain", 5));
    send_descriptors(stream[0], "both", (int[]){ event, file }, 2);
    MUST((int)write(stream[0], "after", 5));
    close(event);                       /* now only the queue has it */

    /* A socket in the queue of a socket that is itself only in a queue. */
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, carrier));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, nested));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, private));
    MUST((int)write(private[0], "innermost", 9));
    send_descriptors(nested[0], "inner", &private[1], 1);
    send_descriptors(carrier[0], "outer", &nested[1], 1);
    close(private[1]);
    close(nested[1]);

    int on = 1;
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, credentials));
    MUST(setsockopt(credentials[1], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    int ready[2];
    MUST(pipe(ready));
    pid_t child = fidelity_fork();
    if (child == 0) {
        MUST(setgid(1001));
        MUST(setuid(1000));
        MUST((int)send(credentials[0], "of the child", 12, 0));
        MUST((int)write(ready[1], "x", 1));
        fidelity_await_go();
        pause();
    }
    char byte;
    MUST((int)read(ready[0], &byte, 1));
    MUST((int)send(credentials[0], "of mine", 7, 0));

    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, peeked));
    MUST((int)write(peeked[0], "abcdef", 6));
    int offset = 2;
    MUST(setsockopt(peeked[1], SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof offset));

    fidelity_ready();
    fidelity_await_go();

    struct received got = receive(stream[1], 5);
    expect(&got, "plain", 0);
    got = receive(stream[1], sizeof got.text - 1);
    expect(&got, "both", 2);
    uint64_t count;
    CHECK(read(got.fds[0], &count, sizeof count) == sizeof count && count == 41, "the queued eventfd does not hold 41");
    CHECK(lseek(got.fds[1], 0, SEEK_CUR) == 4, "the queued file is at %ld", (long)lseek(got.fds[1], 0, SEEK_CUR));
    MUST((int)lseek(got.fds[1], 7, SEEK_SET));
    CHECK(lseek(file, 0, SEEK_CUR) == 7, "the queued file does not share its offset with its other descriptor");
    got = receive(stream[1], sizeof got.text - 1);
    expect(&got, "after", 0);

    got = receive(carrier[1], sizeof got.text - 1);
    expect(&got, "outer", 1);
    struct received inner = receive(got.fds[0], sizeof inner.text - 1);
    expect(&inner, "inner", 1);
    struct received innermost = receive(inner.fds[0], sizeof innermost.text - 1);
    expect(&innermost, "innermost", 0);
    MUST((int)write(private[0], "live", 4));
    innermost = receive(inner.fds[0], sizeof innermost.text - 1);
    expect(&innermost, "live", 0);

    got = receive(credentials[1], sizeof got.text - 1);
    expect(&got, "of the child", 0);
    CHECK(got.has_credentials && got.credentials.pid == child && got.credentials.uid == 1000 && got.credentials.gid == 1001,
          "the child's message is from pid %d, %u:%u", got.credentials.pid, got.credentials.uid, got.credentials.gid);
    got = receive(credentials[1], sizeof got.text - 1);
    expect(&got, "of mine", 0);
    CHECK(got.has_credentials && got.credentials.pid == getpid() && got.credentials.uid == 0, "my message is from pid %d", got.credentials.pid);
    MUST(kill(child, SIGKILL));

    char text[8] = "";
    CHECK(recv(peeked[1], text, 2, MSG_PEEK) == 2 && strcmp(text, "cd") == 0, "peeking at offset 2 gave \"%s\"", text);
    socklen_t size = sizeof offset;
    MUST(getsockopt(peeked[1], SOL_SOCKET, SO_PEEK_OFF, &offset, &size));
    CHECK(offset == 4, "the peek offset is %d", offset);
    fidelity_pass();
}
