/* Ptys: a session with its controlling terminal and a background job, settings, size, unread bytes both ways, /dev/tty, gaps in the numbers, a locked and an exclusive one. */
#include "fidelity.h"

#include <sys/ioctl.h>
#include <termios.h>

static char *slave_name(int master)
{
    static char name[32];
    unsigned index;
    MUST(ioctl(master, TIOCGPTN, &index));
    snprintf(name, sizeof name, "/dev/pts/%u", index);
    return name;
}

static int open_master(void)
{
    int master = MUST(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)), unlock = 0;
    MUST(ioctl(master, TIOCSPTLCK, &unlock));
    return master;
}

static int results[2];

static void __attribute__((noreturn)) verdict(int code)
{
    char byte = (char)code;
    MUST((int)write(results[1], &byte, 1));
    for (;;)
        pause();
}

/* The session's leader: terminal, foreground group = its job. */
static void __attribute__((noreturn)) lead(const char *name)
{
    setsid();
    int slave = MUST(open(name, O_RDWR));
    int tty = MUST(open("/dev/tty", O_RDWR | O_NOCTTY));
    signal(SIGTTOU, SIG_IGN);
    pid_t job = fidelity_fork();
    if (job == 0) {
        setpgid(0, 0);
        for (;;)
            pause();
    }
    setpgid(job, job);
    MUST(tcsetpgrp(slave, job));
    char ready = 'r';
    MUST((int)write(results[1], &ready, 1));
    fidelity_await_go();
    char line[16] = "";
    if (tcgetpgrp(slave) != job)
        verdict(1);
    if (tcgetsid(slave) != getpid() || tcgetpgrp(tty) != job)
        verdict(2);
    struct stat st;
    fstat(tty, &st);
    if (st.st_rdev != 0x500)
        verdict(3);
    int again = open("/dev/tty", O_RDWR);
    if (again < 0 || write(again, "hello\n", 6) != 6)
        verdict(4);
    MUST(tcsetpgrp(slave, getpgrp()));
    if (read(slave, line, sizeof line) != 5 || memcmp(line, "typed", 5) != 0)
        verdict(5);
    kill(job, SIGKILL);
    fflush(NULL);
    verdict(0);
}

int main(void)
{
    MUST(pipe(results));
    int gap = open_master(), master = open_master(), other = open_master(), packet = open_master(), closed = open_master();
    char name[32], other_name[32];
    strcpy(name, slave_name(master));
    strcpy(other_name, slave_name(other));
    MUST(chmod(name, 0622));
    close(MUST(open(slave_name(closed), O_RDWR | O_NOCTTY)));
    close(gap);
    struct winsize size = { 33, 101, 1010, 660 }, size_now;
    struct termios raw, settings;
    MUST(ioctl(master, TIOCSWINSZ, &size));
    int slave = MUST(open(name, O_RDWR | O_NOCTTY | O_NONBLOCK));
    MUST(tcgetattr(slave, &raw));
    cfmakeraw(&raw);
    raw.c_cc[VMIN] = 3;
    raw.c_oflag |= OPOST | ONLCR;
    MUST(tcsetattr(slave, TCSANOW, &raw));
    MUST((int)write(master, "typed", 5));
    MUST((int)write(slave, "shown\n", 6));
    int on = 1;
    MUST(ioctl(packet, TIOCPKT, &on));
    /* Canonical mode: a finished line waits to be read. */
    int other_slave = MUST(open(other_name, O_RDWR | O_NOCTTY));
    MUST((int)write(other, "a line\n", 7));
    MUST(ioctl(other_slave, TIOCEXCL));
    int locked = MUST(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
    pid_t leader = fidelity_fork();
    if (leader == 0)
        lead(name);
    char byte;
    CHECK(read(results[0], &byte, 1) == 1 && byte == 'r', "the session did not get ready");

    fidelity_ready();
    fidelity_await_go();
    char text[64] = "";
    struct stat st;
    CHECK(strcmp(slave_name(master), name) == 0 && strcmp(slave_name(other), other_name) == 0, "the terminals have other numbers");
    MUST(stat(name, &st));
    CHECK((st.st_mode & 0777) == 0622, "mode %o of %s", st.st_mode, name);
    MUST(ioctl(slave, TIOCGWINSZ, &size_now));
    CHECK(memcmp(&size, &size_now, sizeof size) == 0, "the size is %d x %d", size_now.ws_row, size_now.ws_col);
    MUST(tcgetattr(slave, &settings));
    CHECK(settings.c_lflag == raw.c_lflag && settings.c_iflag == raw.c_iflag && settings.c_oflag == raw.c_oflag && settings.c_cc[VMIN] == 3,
          "the settings differ");
    MUST(ioctl(packet, TIOCGPKT, &on));
    CHECK(on == 1, "packet mode is lost");
    on = 0;
    MUST(ioctl(other_slave, TIOCGEXCL, &on));
    CHECK(on == 1, "the exclusive terminal is not any more");
    MUST(ioctl(locked, TIOCGPTLCK, &on));
    CHECK(on == 1 && open(slave_name(locked), O_RDWR | O_NOCTTY) < 0 && errno == EIO, "the locked terminal can be opened: %s", strerror(errno));
    MUST(ioctl(master, TIOCGPTLCK, &on));
    CHECK(on == 0, "the terminal that was unlocked is locked");
    struct pollfd hung = { closed, POLLIN, 0 };
    CHECK(poll(&hung, 1, 0) == 1 && (hung.revents & POLLHUP), "the terminal whose slave was closed does not say so");
    struct pollfd verdict_ready = { results[0], POLLIN, 0 };
    CHECK(poll(&verdict_ready, 1, 10000) == 1 && read(results[0], &byte, 1) == 1, "the session does not answer");
    CHECK(byte == 0, "the session: check %d failed", byte);
    // What one write sends may come in parts, when the line discipline is met in its midst.
    struct pollfd shown = { master, POLLIN, 0 };
    for (size_t got = 0; got < strlen("shown\r\nhello\r\n") && poll(&shown, 1, 10000) == 1;)
        got += (size_t)MUST((int)read(master, text + got, sizeof text - 1 - got));
    CHECK(strcmp(text, "shown\r\nhello\r\n") == 0, "the master reads '%s'", text);
    memset(text, 0, sizeof text);
    struct pollfd line = { other_slave, POLLIN, 0 };
    CHECK(poll(&line, 1, 15000) == 1, "the typed line is lost");
    CHECK(read(other_slave, text, sizeof text - 1) == 7 && strcmp(text, "a line\n") == 0, "the line is '%s'", text);
    CHECK(read(other, text, sizeof text - 1) == 8 && memcmp(text, "a line\r\n", 8) == 0, "the echo differs");
    kill(leader, SIGKILL);
    fidelity_pass();
}
