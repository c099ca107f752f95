/*
 * tclone-init: pid 1 of every workspace that was launched from an image.
 *
 *     /usr/libexec/tclone/init -- CMD ARGS...
 *
 * It opens its standard descriptors inside the root (a descriptor of the host could not be made again in a branch), starts CMD in a session of
 * its own, forwards signals to it, reaps whatever ends, and ends with CMD's status; the kernel then kills the rest of the pid namespace.
 * Its state is kept as simple as can be, because every fork makes it anew: one thread, no handler, three descriptors, one blocking wait.
 */
#include "after_fork.h"
#include "watch.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef TCLONE_VERSION
#define TCLONE_VERSION "0.1"
#endif

#define SIZE_LOOKS 1000
#define SIZE_PAUSE_US 1000

enum { EXIT_USAGE = 2, EXIT_SETUP = 125, EXIT_CANNOT_EXECUTE = 126, EXIT_NOT_FOUND = 127, EXIT_SIGNAL_BASE = 128 };

static const int forwarded[] = { SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGWINCH };

static void die(int status, const char *what)
{
    fprintf(stderr, "tclone-init: %s: %s\n", what, strerror(errno));
    exit(status);
}

/* Each component is opened with O_NOFOLLOW: an image could hold a link there that leads anywhere in its root. */
static int open_directory_below_root(const char *const *names)
{
    int directory = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    for (; directory >= 0 && *names; names++) {
        if (mkdirat(directory, *names, 0755) < 0 && errno != EEXIST)
            return -1;
        int next = openat(directory, *names, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        close(directory);
        directory = next;
    }
    return directory;
}

int open_console_log(void)
{
    static const char *const names[] = { "var", "log", "tclone", NULL };
    int directory = open_directory_below_root(names);
    if (directory < 0)
        return -1;
    return openat(directory, "console.log", O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NOCTTY, 0644);
}

/* Standard input is /dev/null, the other two append to the log. Errors up to here go wherever the runtime pointed stderr. */
static void open_standard_descriptors(void)
{
    int log = open_console_log();
    if (log < 0)
        die(EXIT_SETUP, "cannot open /var/log/tclone/console.log");
    int null = open("/dev/null", O_RDWR);
    if (null < 0)
        die(EXIT_SETUP, "cannot open /dev/null");
    /* Out of the way of 0 to 2 first, in case the runtime left one of those closed. */
    log = fcntl(log, F_DUPFD, 3);
    null = fcntl(null, F_DUPFD, 3);
    if (log < 0 || null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 || close_range(3, ~0U, 0) < 0)
        die(EXIT_SETUP, "cannot set up descriptors 0, 1 and 2");
}

/* A signal that its receiver blocks is queued even for pid 1, which would otherwise not get signals it has no handler for. */
static void block_awaited_signals(sigset_t *awaited)
{
    sigemptyset(awaited);
    sigaddset(awaited, SIGCHLD);
    for (size_t i = 0; i < sizeof forwarded / sizeof *forwarded; i++)
        sigaddset(awaited, forwarded[i]);
    sigprocmask(SIG_BLOCK, awaited, NULL);
}

/* Returns the status for a command that cannot be executed. */
static int execute(char **command)
{
    execvp(command[0], command);
    int status = errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE;
    fprintf(stderr, "tclone-init: cannot execute %s: %s\n", command[0], strerror(errno));
    return status;
}

static void run_command(char **command, const sigset_t *awaited)
{
    setsid();
    sigprocmask(SIG_UNBLOCK, awaited, NULL);
    _exit(execute(command));
}

/* Reap all that has ended. True, and *status as a shell would give it, once the command itself was among them. */
static bool reap(pid_t command, int *status)
{
    bool ended = false;
    int wait_status;
    pid_t pid;
    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        if (pid != command)
            continue;
        ended = true;
        *status = WIFSIGNALED(wait_status) ? EXIT_SIGNAL_BASE + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    }
    return ended;
}

static int supervise(pid_t command, const sigset_t *awaited)
{
    int status = 0;
    for (;;) {
        siginfo_t info;
        int number = sigwaitinfo(awaited, &info);
        if (number < 0 && errno != EINTR)
            die(EXIT_SETUP, "cannot wait for signals");
        if (number == SIGCHLD && reap(command, &status))
            return status;
        if (number > 0 && number != SIGCHLD)
            kill(-command, number);
    }
}

/*
 * `tclone exec -t`: the runtime starts the command before anybody can give its terminal a size, and one that asks at once would be told 0 by 0.
 * Whoever has the other end sets it within a few milliseconds; one that does not is not waited for long.
 */
static int execute_in_terminal(char **command)
{
    struct winsize size;
    for (int look = 0; look < SIZE_LOOKS && ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0 && !size.ws_row && !size.ws_col; look++)
        usleep(SIZE_PAUSE_US);
    return execute(command);
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--version") == 0) {
        puts("tclone-init " TCLONE_VERSION);
        return 0;
    }
    if (argc == 2 && strcmp(argv[1], "--after-fork") == 0)
        return after_fork();
    if (argc >= 3 && strcmp(argv[1], "--in-terminal") == 0)
        return execute_in_terminal(argv + 2);
    if (argc == 3 && (strcmp(argv[1], "--watch") == 0 || strcmp(argv[1], "--watch-below") == 0))
        return watch(argv[2], strcmp(argv[1], "--watch-below") == 0);
    if (argc < 3 || strcmp(argv[1], "--") != 0) {
        fputs("usage: tclone-init -- COMMAND [ARGUMENT...]\n       tclone-init --in-terminal COMMAND [ARGUMENT...]\n       tclone-init --after-fork\n       tclone-init --watch DIRECTORY\n       tclone-init --watch-below DIRECTORY\n       tclone-init --version\n", stderr);
        return EXIT_USAGE;
    }
    open_standard_descriptors();
    sigset_t awaited;
    block_awaited_signals(&awaited);
    pid_t command = fork();
    if (command < 0)
        die(EXIT_SETUP, "cannot fork");
    if (command == 0)
        run_command(argv + 2, &awaited);
    return supervise(command, &awaited);
}
