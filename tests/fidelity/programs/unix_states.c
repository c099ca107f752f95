/* Unix sockets in less usual states: groups of the peer, passing options, urgent bytes, full queues with blocked senders, autobound names. */
#include "fidelity.h"

#include <grp.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#define ROOTED "/tmp/fidelity-rooted"
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif

static void pair(int type, int *ends)
{
    MUST(socketpair(AF_UNIX, type, 0, ends));
}

static void expect(int fd, const char *text)
{
    char got[64] = "";
    ssize_t size = recv(fd, got, strlen(text), MSG_DONTWAIT);
    CHECK(size == (ssize_t)strlen(text) && strcmp(got, text) == 0, "fd %d: got \"%s\" (%zd), not \"%s\": %s", fd, got, size, text, strerror(errno));
}

/* Another user with groups of its own makes a pair and keeps one end. */
static pid_t other_user(int *ours)
{
    int give[2];
    pair(SOCK_DGRAM, give);
    pid_t child = fidelity_fork();
    if (child == 0) {
        int ends[2];
        gid_t groups[] = { 2000, 2001, 2002 };
        MUST(setgroups(3, groups));
        MUST(setresgid(1001, 1001, 1001));
        MUST(setresuid(1000, 1000, 1000));
        pair(SOCK_STREAM, ends);
        union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
        struct iovec io = { "x", 1 };
        struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
        struct cmsghdr *part = CMSG_FIRSTHDR(&header);
        *part = (struct cmsghdr){ .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS };
        memcpy(CMSG_DATA(part), &ends[0], sizeof(int));
        MUST((int)sendmsg(give[1], &header, 0));
        for (;;)
            pause();
    }
    union { char bytes[CMSG_SPACE(sizeof(int))]; struct cmsghdr align; } control;
    char byte;
    struct iovec io = { &byte, 1 };
    struct msghdr header = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
    MUST((int)recvmsg(give[0], &header, 0));
    memcpy(ours, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(int));
    return child;
}

static void check_peer(int fd, pid_t peer)
{
    gid_t groups[16];
    socklen_t size = sizeof groups;
    MUST(getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size));
    CHECK(size == 3 * sizeof *groups && groups[0] == 2000 && groups[1] == 2001 && groups[2] == 2002, "the peer has %zu groups, the first is %u",
          size / sizeof *groups, groups[0]);
    struct ucred credentials;
    size = sizeof credentials;
    MUST(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size));
    CHECK(credentials.pid == peer && credentials.uid == 1000 && credentials.gid == 1001, "the peer is pid %d, %u:%u", credentials.pid, credentials.uid,
          credentials.gid);
    int status;
    MUST(kill(peer, SIGKILL));
    CHECK(waitpid(peer, &status, 0) == peer, "the peer cannot be waited for");
}

/* Fills the queue and blocks in one more. */
static pid_t blocked_sender(int fd, int counted)
{
    pid_t child = fidelity_fork();
    if (child > 0)
        return child;
    int count = 0;
    while (send(fd, &count, sizeof count, MSG_DONTWAIT) == sizeof count)
        count++;
    MUST((int)write(counted, &count, sizeof count));
    MUST((int)send(fd, &count, sizeof count, 0));
    _exit(0);
}

static void drain(int fd, int count, pid_t sender)
{
    for (int i = 0; i <= count; i++) {
        int value = -1;
        struct pollfd ready = { fd, POLLIN, 0 };
        CHECK(poll(&ready, 1, 10000) == 1, "after %d of %d messages nothing comes", i, count);
        CHECK(recv(fd, &value, sizeof value, 0) == sizeof value && value == i, "message %d is %d", i, value);
    }
    fidelity_expect_exit(sender, 0);
}

/* A server in a root directory of its own: the name that it is bound to counts from there. */
static pid_t rooted_server(int ready)
{
    pid_t child = fidelity_fork();
    if (child > 0)
        return child;
    struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = "/socket" }, name_now = { 0 };
    socklen_t size = sizeof name_now;
    int listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    MUST(chroot(ROOTED));
    MUST(chdir("/"));
    MUST(bind(listener, (void *)&name, sizeof name));
    MUST(listen(listener, 5));
    MUST((int)write(ready, "r", 1));
    int client = MUST(accept(listener, NULL, NULL));
    bool same = getsockname(listener, (void *)&name_now, &size) == 0 && strcmp(name_now.sun_path, "/socket") == 0;
    MUST((int)write(client, same ? "yes" : "no", 3));
    _exit(0);
}

static void check_rooted(pid_t server)
{
    struct sockaddr_un name = { .sun_family = AF_UNIX, .sun_path = ROOTED "/socket" };
    char answer[4] = "";
    int client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    MUST(connect(client, (void *)&name, sizeof name));
    CHECK(read(client, answer, sizeof answer - 1) == 3 && strcmp(answer, "yes") == 0, "the server in its own root has another name");
    fidelity_expect_exit(server, 0);
}

int main(void)
{
    int from_other, stream[2], urgent[2], half[2], full[2], packets[2], counted[2], count_dgram, count_packets, on = 1, value;
    socklen_t size = sizeof value;
    pid_t other = other_user(&from_other);
    pair(SOCK_STREAM, stream);
    MUST(setsockopt(stream[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on));
    MUST(setsockopt(stream[0], SOL_SOCKET, SO_PASSSEC, &on, sizeof on));
    bool pidfds = setsockopt(stream[0], SOL_SOCKET, SO_PASSPIDFD, &on, sizeof on) == 0;
    MUST((int)write(stream[1], "with credentials", 16));
    pair(SOCK_STREAM, urgent);
    MUST((int)send(urgent[1], "before", 6, 0));
    bool out_of_band = send(urgent[1], "!", 1, MSG_OOB) == 1;
    MUST((int)send(urgent[1], "behind", 6, 0));
    pair(SOCK_STREAM, half);
    MUST((int)write(half[1], "rest", 4));
    MUST(shutdown(half[0], SHUT_RD));
    MUST(pipe(counted));
    char byte;
    MUST(mkdir(ROOTED, 0755));
    pid_t rooted = rooted_server(counted[1]);
    MUST((int)read(counted[0], &byte, 1));
    pair(SOCK_DGRAM, full);
    pair(SOCK_SEQPACKET, packets);
    pid_t dgram_sender = blocked_sender(full[1], counted[1]);
    MUST((int)read(counted[0], &count_dgram, sizeof count_dgram));
    pid_t packet_sender = blocked_sender(packets[1], counted[1]);
    MUST((int)read(counted[0], &count_packets, sizeof count_packets));
    struct sockaddr_un name = { .sun_family = AF_UNIX }, name_now;
    int automatic = MUST(socket(AF_UNIX, SOCK_DGRAM, 0));
    MUST(bind(automatic, (void *)&name, sizeof name.sun_family));
    socklen_t name_size = sizeof name, name_size_now = sizeof name_now;
    MUST(getsockname(automatic, (void *)&name, &name_size));
    fidelity_sleep_ms(300);

    fidelity_ready();
    fidelity_await_go();

    MUST(getsockopt(stream[0], SOL_SOCKET, SO_PASSCRED, &value, &size));
    CHECK(value == 1, "SO_PASSCRED is lost");
    MUST(getsockopt(stream[0], SOL_SOCKET, SO_PASSSEC, &value, &size));
    CHECK(value == 1, "SO_PASSSEC is lost");
    if (pidfds) {
        MUST(getsockopt(stream[0], SOL_SOCKET, SO_PASSPIDFD, &value, &size));
        CHECK(value == 1, "SO_PASSPIDFD is lost");
    }
    expect(stream[0], "with credentials");
    expect(urgent[0], "before");
    if (out_of_band) {
        MUST(ioctl(urgent[0], SIOCATMARK, &value));
        CHECK(value == 1, "the urgent byte is not where it was");
        CHECK(recv(urgent[0], &byte, 1, MSG_OOB | MSG_DONTWAIT) == 1 && byte == '!', "the urgent byte is lost: %s", strerror(errno));
    }
    expect(urgent[0], "behind");
    CHECK(send(half[1], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "one can send to a socket that was shut down for reading");
    CHECK(write(half[0], "other way", 9) == 9, "the half-closed socket cannot send");
    expect(half[1], "other way");
    expect(half[0], "rest");
    CHECK(recv(half[0], &value, 1, 0) == 0, "SHUT_RD is lost");
    drain(full[0], count_dgram, dgram_sender);
    drain(packets[0], count_packets, packet_sender);
    MUST(getsockname(automatic, (void *)&name_now, &name_size_now));
    CHECK(name_size == name_size_now && memcmp(&name, &name_now, name_size) == 0, "the autobound name differs");
    check_peer(from_other, other);
    check_rooted(rooted);
    fidelity_pass();
}
