/*
 * What every fidelity program does: make some kernel state, say that it is ready, wait to be told to go on (the fork happens during that
 * wait), and check the state. The same check runs in the source and in each branch, so it proves that neither lost anything;
 * what it then changes proves that the two are independent, because the branches are told to go on first and the source after them.
 */
#ifndef FIDELITY_H
#define FIDELITY_H

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Some fifty processes poll in each of several workspaces on a machine that may have two cores. */
#define FIDELITY_POLL_MS 50
/* A program that spins to be met at work by the fork stops doing so after this many seconds. */
#define FIDELITY_SPIN_SECONDS 4
#define FIDELITY_DIRECTORY "/tmp/fidelity/"

static inline const char *fidelity_name(void)
{
    return program_invocation_short_name;
}

static inline void fidelity_write(const char *suffix, const char *text)
{
    char path[256], temporary[300];
    snprintf(path, sizeof path, FIDELITY_DIRECTORY "%s.%s", fidelity_name(), suffix);
    snprintf(temporary, sizeof temporary, "%s.%d", path, (int)syscall(SYS_gettid));
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
        _exit(99);
    close(fd);
    if (rename(temporary, path) < 0)
        _exit(98);
}

/* Report a failed check and end the program. */
static inline __attribute__((format(printf, 1, 2), noreturn)) void fidelity_fail(const char *format, ...)
{
    char text[512] = "fail: ";
    va_list args;
    va_start(args, format);
    vsnprintf(text + 6, sizeof text - 6, format, args);
    va_end(args);
    fidelity_write("result", text);
    _exit(1);
}

#define CHECK(condition, ...) \
    do { \
        if (!(condition)) \
            fidelity_fail("line " FIDELITY_LINE(__LINE__) ": " __VA_ARGS__); \
    } while (0)
#define FIDELITY_LINE(line) FIDELITY_LINE_TEXT(line)
#define FIDELITY_LINE_TEXT(line) #line
/* For a system call that must not fail. */
#define MUST(call) \
    ({ \
        __typeof__(call) result_ = (call); \
        if (result_ == (__typeof__(call))-1) \
            fidelity_fail("line " FIDELITY_LINE(__LINE__) ": %s: %s", #call, strerror(errno)); \
        result_; \
    })

static inline __attribute__((noreturn)) void fidelity_pass(void)
{
    fidelity_write("result", "pass");
    _exit(0);
}

static inline void fidelity_ready(void)
{
    fidelity_write("ready", "ready");
}

static inline void fidelity_sleep_ms(long milliseconds)
{
    struct timespec left = { milliseconds / 1000, milliseconds % 1000 * 1000000 };
    while (nanosleep(&left, &left) < 0)
        if (errno != EINTR)
            fidelity_fail("nanosleep: %s", strerror(errno));
}

/* Whether the file that tells everybody to go on is there; its text is "source" or "branch". */
static inline bool fidelity_may_go(void)
{
    return access(FIDELITY_DIRECTORY "go", F_OK) == 0;
}

static inline void fidelity_await_go(void)
{
    while (!fidelity_may_go())
        fidelity_sleep_ms(FIDELITY_POLL_MS);
}

/* After "go": am I in a branch? */
static inline bool fidelity_in_branch(void)
{
    char side[16] = "";
    int fd = open(FIDELITY_DIRECTORY "go", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, side, sizeof side - 1) < 0)
        fidelity_fail("cannot read the go file");
    close(fd);
    return strcmp(side, "branch") == 0;
}

static inline double fidelity_now(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Read /proc/self/NAME or another small file into a static buffer. */
static inline char *fidelity_file(const char *path)
{
    static char text[65536];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        fidelity_fail("cannot open %s: %s", path, strerror(errno));
    ssize_t used = 0, got;
    while ((got = read(fd, text + used, sizeof text - 1 - (size_t)used)) > 0)
        used += got;
    text[used] = 0;
    close(fd);
    return text;
}

/* fork, failing the program when that fails. */
static inline pid_t fidelity_fork(void)
{
    fflush(NULL);
    return MUST(fork());
}

/* Wait for a child that must have exited with `status`. */
static inline void fidelity_expect_exit(pid_t child, int status)
{
    int wait_status;
    pid_t got;
    do
        got = waitpid(child, &wait_status, 0);
    while (got < 0 && errno == EINTR);
    if (got != child || !WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != status)
        fidelity_fail("child %d: waitpid gave %d, status 0x%x, expected exit %d", child, got, wait_status, status);
}

#endif
