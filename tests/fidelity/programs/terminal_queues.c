/* What lies in ptys: an unfinished line, output stopped by ^S and by tcflow, a full buffer with its blocked writer, a closed slave, packet mode, ^D. */
#include "fidelity.h"

#include <sys/ioctl.h>
#include <termios.h>

struct terminal {
    int master, slave;
};

static struct terminal make(void)
{
    struct terminal made = { .master = MUST(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK)) };
    int unlock = 0;
    MUST(ioctl(made.master, TIOCSPTLCK, &unlock));
    made.slave = MUST(ioctl(made.master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK));
    return made;
}

static void set(struct terminal terminal, tcflag_t iflag, tcflag_t oflag, tcflag_t lflag)
{
    struct termios settings;
    MUST(tcgetattr(terminal.slave, &settings));
    settings.c_iflag = iflag;
    settings.c_oflag = oflag;
    settings.c_lflag = lflag;
    MUST(tcsetattr(terminal.slave, TCSANOW, &settings));
}

static void put(int fd, const char *text)
{
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text), "cannot write \"%s\": %s", text, strerror(errno));
}

static void expect(int fd, const char *text)
{
    char got[256] = "";
    struct pollfd ready = { fd, POLLIN, 0 };
    poll(&ready, 1, 2000);
    ssize_t size = read(fd, got, sizeof got - 1);
    CHECK(size == (ssize_t)strlen(text) && strcmp(got, text) == 0, "read \"%s\" (%zd, %s), not \"%s\"", got, size, strerror(errno), text);
}

static void expect_nothing(int fd, const char *what)
{
    struct pollfd ready = { fd, POLLIN, 0 };
    CHECK(poll(&ready, 1, 0) == 0, "%s can be read", what);
}

/* Fills a terminal until there is no room, then blocks in one more write. */
static pid_t fill(struct terminal terminal, int counted)
{
    pid_t child = fidelity_fork();
    if (child > 0)
        return child;
    int total = 0, got;
    char line[100];
    memset(line, 'f', sizeof line);
    while ((got = (int)write(terminal.slave, line, sizeof line)) > 0)
        total += got;
    MUST((int)write(counted, &total, sizeof total));
    int flags = MUST(fcntl(terminal.slave, F_GETFL));
    MUST(fcntl(terminal.slave, F_SETFL, flags & ~O_NONBLOCK));
    put(terminal.slave, "the end");
    _exit(0);
}

static void check_full(struct terminal full, int total, pid_t child)
{
    static char got[200000];
    int size = 0, wanted = total + 7;
    while (size < wanted) {
        struct pollfd ready = { full.master, POLLIN, 0 };
        CHECK(poll(&ready, 1, 10000) == 1, "after %d of %d bytes nothing comes", size, wanted);
        int part = (int)read(full.master, got + size, sizeof got - (size_t)size);
        CHECK(part > 0, "read: %s", strerror(errno));
        size += part;
    }
    CHECK(size == wanted && memcmp(got + total, "the end", 7) == 0, "%d bytes, not %d", size, wanted);
    for (int i = 0; i < total; i++)
        CHECK(got[i] == 'f', "byte %d is %d", i, got[i]);
    fidelity_expect_exit(child, 0);
}

int main(void)
{
    struct terminal typing = make(), stopped = make(), held = make(), full = make(), closed = make(), packets = make(), ended = make();
    int counted[2], total, on = 1;
    MUST(pipe(counted));
    set(typing, ICRNL | IXON, OPOST | ONLCR, ICANON | ISIG | IEXTEN | ECHO);
    put(typing.master, "whole\runfin\x16\x03ished");
    char echo[64];
    struct pollfd echoed = { typing.master, POLLIN, 0 };
    while (poll(&echoed, 1, 500) == 1)
        MUST((int)read(typing.master, echo, sizeof echo));
    set(stopped, IXON, 0, ICANON);
    put(stopped.slave, "before");
    put(stopped.master, "\023");
    set(held, 0, 0, 0);
    MUST(tcflow(held.slave, TCOOFF));
    set(full, 0, 0, 0);
    pid_t child = fill(full, counted[1]);
    MUST((int)read(counted[0], &total, sizeof total));
    set(closed, 0, 0, 0);
    put(closed.slave, "last words");
    close(closed.slave);
    set(packets, 0, 0, 0);
    MUST(ioctl(packets.master, TIOCPKT, &on));
    put(packets.slave, "packed");
    set(ended, 0, 0, ICANON);
    put(ended.master, "one\ntwo\004\004");
    fidelity_sleep_ms(300);

    fidelity_ready();
    fidelity_await_go();

    expect_nothing(typing.master, "an echo");
    expect(typing.slave, "whole\n");
    expect_nothing(typing.slave, "the unfinished line");
    put(typing.master, "\177!\r");
    expect(typing.slave, "unfin\x03ishe!\n");
    struct pollfd room = { stopped.slave, POLLOUT, 0 };
    CHECK(poll(&room, 1, 0) == 0, "the terminal is not stopped any more");
    expect(stopped.master, "before");
    put(stopped.master, "\021");
    CHECK(poll(&room, 1, 2000) == 1, "^Q does not start the stopped terminal");
    put(stopped.slave, "after");
    expect(stopped.master, "after");
    CHECK(write(held.slave, "x", 1) == -1 && errno == EAGAIN, "tcflow(TCOOFF) is forgotten");
    MUST(tcflow(held.slave, TCOON));
    put(held.slave, "on");
    expect(held.master, "on");
    check_full(full, total, child);
    expect(closed.master, "last words");
    char byte;
    CHECK(read(closed.master, &byte, 1) == -1 && errno == EIO, "the closed terminal has no end");
    char packet[16] = "";
    CHECK(read(packets.master, packet, sizeof packet) == 7 && packet[0] == TIOCPKT_DATA && strcmp(packet + 1, "packed") == 0, "the packet is %d \"%s\"",
          packet[0], packet + 1);
    MUST(tcflow(packets.slave, TCOOFF));
    CHECK(read(packets.master, packet, sizeof packet) == 1 && packet[0] == TIOCPKT_STOP, "packet mode does not tell that output was stopped");
    expect(ended.slave, "one\n");
    expect(ended.slave, "two");
    CHECK(read(ended.slave, &byte, 1) == 0, "the end of file is lost");
    fidelity_pass();
}
