/* Leases: a fork does not break them; in a branch as in the source a conflicting opening tells the holder by its own signal, then waits for it. */
#include "fidelity.h"

#define BASE "/tmp/fidelity-leases"
#define SIGNAL (SIGRTMIN + 3)

static volatile int told_of = -1, told;

static void on_break(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    told_of = info->si_fd;
    told++;
}

static int open_file(const char *path, int flags)
{
    return MUST(open(path, flags | O_CREAT | O_CLOEXEC, 0644));
}

/* Another process opens the file; it gets it only once the lease is given up. Its exit status: 0 = at once, 1 = after a while. */
static pid_t open_elsewhere(const char *path, int flags)
{
    pid_t child = fidelity_fork();
    if (child > 0)
        return child;
    int at_once = open(path, flags | O_NONBLOCK);
    if (at_once >= 0)
        _exit(0);
    if (errno != EWOULDBLOCK || open(path, flags) < 0)
        _exit(2);
    _exit(1);
}

static void expect_break(int fd, const char *path, int flags)
{
    told_of = -1;
    pid_t child = open_elsewhere(path, flags);
    for (int tries = 0; told_of != fd && tries < 200; tries++)
        fidelity_sleep_ms(50);
    CHECK(told_of == fd, "nobody told that %s is opened (told of %d)", path, told_of);
    int status;
    CHECK(waitpid(child, &status, WNOHANG) == 0, "the other process got %s at once", path);
    MUST(fcntl(fd, F_SETLEASE, F_UNLCK));
    fidelity_expect_exit(child, 1);
}

int main(void)
{
    struct sigaction action = { .sa_sigaction = on_break, .sa_flags = SA_SIGINFO | SA_RESTART };
    MUST(sigaction(SIGNAL, &action, NULL));
    MUST(mkdir(BASE, 0755));
    close(open_file(BASE "/read", O_RDWR));
    close(open_file(BASE "/free", O_RDWR));
    int reading = open_file(BASE "/read", O_RDONLY), writing = open_file(BASE "/write", O_RDWR), unlinked = open_file(BASE "/unlinked", O_RDWR);
    MUST(unlink(BASE "/unlinked"));
    MUST((int)write(unlinked, "kept", 4));
    if (fcntl(reading, F_SETLEASE, F_RDLCK) < 0) {
        /* Then there is nothing that a fork could lose. */
        CHECK(errno == EINVAL, "F_SETLEASE: %s", strerror(errno));
        fidelity_ready();
        fidelity_await_go();
        fidelity_pass();
    }
    MUST(fcntl(reading, F_SETSIG, SIGNAL));
    MUST(fcntl(writing, F_SETSIG, SIGNAL));
    MUST(fcntl(unlinked, F_SETSIG, SIGNAL));
    MUST(fcntl(writing, F_SETLEASE, F_WRLCK));
    MUST(fcntl(unlinked, F_SETLEASE, F_WRLCK));

    fidelity_ready();
    fidelity_await_go();

    CHECK(told == 0, "the fork broke the lease on descriptor %d", told_of);
    CHECK(fcntl(reading, F_GETLEASE) == F_RDLCK && fcntl(writing, F_GETLEASE) == F_WRLCK, "the leases are %d and %d", fcntl(reading, F_GETLEASE),
          fcntl(writing, F_GETLEASE));
    char text[16] = "";
    CHECK(fcntl(unlinked, F_GETLEASE) == (fidelity_in_branch() ? F_UNLCK : F_WRLCK), "the lease on an unlinked file is %d", fcntl(unlinked, F_GETLEASE));
    CHECK(lseek(unlinked, 0, SEEK_CUR) == 4 && pread(unlinked, text, sizeof text, 0) == 4 && strcmp(text, "kept") == 0, "the unlinked file holds \"%s\"",
          text);
    fidelity_expect_exit(open_elsewhere(BASE "/read", O_RDONLY), 0);
    expect_break(reading, BASE "/read", O_WRONLY);
    expect_break(writing, BASE "/write", O_RDONLY);
    fidelity_pass();
}
