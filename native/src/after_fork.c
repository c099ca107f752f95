/*
 * Programs hear of a fork in two ways, both by files, so that nothing has to run in the source for it:
 *
 *     /run/tclone/notify.d/PID    names a signal ("USR1", "SIGRTMIN+3", "12"); process PID gets it
 *     /etc/tclone/fork.d/NAME     an executable of root's; it is run as root
 *
 * This program runs in the branch, with what any command of root in the workspace may do: whatever the files say, nothing outside is reached.
 */
#include "after_fork.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REGISTRATIONS "/run/tclone/notify.d"
#define HOOKS "/etc/tclone/fork.d"
#define HOOK_SECONDS 10
#define MAX_HOOKS 64
#define MAX_REGISTRATIONS 4096
#define NAME_SIZE 32

/* ---- signals ---- */

static int parse_number(const char *text, int low, int high)
{
    char *end;
    errno = 0;
    long number = strtol(text, &end, 10);
    return isdigit((unsigned char)*text) && !*end && !errno && number >= low && number <= high ? (int)number : -1;
}

static int signal_by_name(const char *name)
{
    if (strncmp(name, "SIG", 3) == 0)
        name += 3;
    if (strcmp(name, "RTMIN") == 0)
        return SIGRTMIN;
    if (strncmp(name, "RTMIN+", 6) == 0) {
        int offset = parse_number(name + 6, 0, SIGRTMAX - SIGRTMIN);
        return offset < 0 ? -1 : SIGRTMIN + offset;
    }
    for (int number = 1; number < 32; number++) {
        const char *known = sigabbrev_np(number);
        if (known && strcmp(name, known) == 0)
            return number;
    }
    return parse_number(name, 1, SIGRTMAX);
}

/* A field of /proc/PID/status as a number; the kernel escapes newlines in the name, so no line can be forged. */
static bool status_field(const char *status, const char *key, int base, uint64_t *value)
{
    const char *line = strstr(status, key);
    if (!line)
        return false;
    *value = strtoull(line + strlen(key), NULL, base);
    return true;
}

/*
 * A stale registration must not end a process that has been given the pid since: only one that catches the signal, or has it blocked for
 * a signalfd, gets it. (A thread inside sigwaitinfo shows the signal as not blocked: such a program installs a handler besides.)
 */
static bool expects(pid_t pid, int number, uid_t owner)
{
    char path[64], status[8192];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, status, sizeof status - 1);
    if (fd >= 0)
        close(fd);
    if (got <= 0)
        return false;
    status[got] = 0;
    uint64_t uid, caught, blocked;
    if (!status_field(status, "\nUid:", 10, &uid) || !status_field(status, "\nSigCgt:", 16, &caught) ||
        !status_field(status, "\nSigBlk:", 16, &blocked))
        return false;
    return (owner == 0 || owner == uid) && ((caught | blocked) >> (number - 1) & 1);
}

static void notify(int directory, const char *name)
{
    struct stat st;
    char text[NAME_SIZE];
    int pid = parse_number(name, 1, INT32_MAX);
    int fd = pid < 0 ? -1 : openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t got = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, text, sizeof text - 1) : -1;
    close(fd);
    if (got <= 0)
        return;
    text[got] = 0;
    text[strcspn(text, " \t\r\n")] = 0;
    int number = signal_by_name(text);
    if (number > 0 && number != SIGKILL && number != SIGSTOP && expects(pid, number, st.st_uid))
        kill(pid, number);
}

static void send_signals(void)
{
    int fd = open(REGISTRATIONS, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = fd < 0 ? NULL : fdopendir(fd);
    if (!directory)
        return;
    struct dirent *entry;
    for (int count = 0; count < MAX_REGISTRATIONS && (entry = readdir(directory)); count++)
        notify(fd, entry->d_name);
    closedir(directory);
}

/* ---- hooks ---- */

static bool only_root_writes(const struct stat *st)
{
    return st->st_uid == 0 && !(st->st_mode & (S_IWGRP | S_IWOTH));
}

/* As run-parts has it: no hidden files, no backups, no leftovers of a package manager. */
static int is_hook(const struct dirent *entry)
{
    const char *name = entry->d_name;
    return *name != '.' && strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(name);
}

static void __attribute__((noreturn)) run_hook(const char *path)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    int null = open("/dev/null", O_RDWR), log = open_console_log();
    if (log < 0)
        log = null;
    /* Never our own output: a daemon that a hook leaves behind must not keep the fork waiting for its end. */
    if (null < 0 || dup2(null, 0) < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0 || close_range(3, ~0U, 0) < 0 || chdir("/") < 0)
        _exit(125);
    execl(path, path, (char *)NULL);
    _exit(errno == ENOENT ? 127 : 126);
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

/* Wait for the hook up to its time limit, then kill its session. Returns its wait status, or -1 when it was too slow. */
static int await_hook(pid_t hook)
{
    int64_t end = now_ms() + HOOK_SECONDS * 1000;
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    int status;
    while (waitpid(hook, &status, WNOHANG) == 0) {
        int64_t left = end - now_ms();
        if (left <= 0) {
            kill(-hook, SIGKILL);
            waitpid(hook, &status, 0);
            return -1;
        }
        struct timespec limit = { left / 1000, left % 1000 * 1000000 };
        sigtimedwait(&child, NULL, &limit);
    }
    return status;
}

/* Returns 0, or 1 with the reason on stderr. */
static int hook(const char *name)
{
    char path[sizeof HOOKS + 256];
    struct stat st;
    snprintf(path, sizeof path, HOOKS "/%s", name);
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) || !(st.st_mode & S_IXUSR))
        return 0;
    if (!only_root_writes(&st)) {
        fprintf(stderr, "%s was not run: others than root can write to it\n", path);
        return 1;
    }
    pid_t child = fork();
    if (child < 0) {
        fprintf(stderr, "%s was not run: %s\n", path, strerror(errno));
        return 1;
    }
    if (child == 0)
        run_hook(path);
    int status = await_hook(child);
    if (status == 0)
        return 0;
    if (status < 0)
        fprintf(stderr, "%s did not end within %d s and was killed\n", path, HOOK_SECONDS);
    else if (WIFSIGNALED(status))
        fprintf(stderr, "%s was ended by signal %d\n", path, WTERMSIG(status));
    else
        fprintf(stderr, "%s ended with status %d\n", path, WEXITSTATUS(status));
    return 1;
}

static int run_hooks(void)
{
    struct stat st;
    struct dirent **names;
    if (stat(HOOKS, &st) < 0 || !S_ISDIR(st.st_mode))
        return 0;
    if (!only_root_writes(&st)) {
        fputs(HOOKS " was not used: others than root can write to it\n", stderr);
        return 1;
    }
    int count = scandir(HOOKS, &names, is_hook, alphasort), failed = 0;
    for (int i = 0; i < count; i++) {
        if (i < MAX_HOOKS)
            failed |= hook(names[i]->d_name);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return failed;
}

int after_fork(void)
{
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    send_signals();
    return run_hooks();
}
