/*
 * Processes, threads, zombies and first threads that have ended, called as nobody should call them: by what /proc prints behind a name, by control characters,
 * by nothing. One is started with arguments and an environment of that sort.
 */
#include "fidelity.h"

#include <pthread.h>

#define COUNT 7
#define FIRST_USER 1000
#define STARTED 77              /* exit status of the program with odd arguments */
#define LEAVE 60                /* its descriptor that is at its end once it may go */

static const char *const names[COUNT] = { ") R 1 (", "a) Z 0 0 0 (b", "two\nlines", "\033[2J\033]0;x", "", "\377\376 \\n", "Uid:\t0\nPPid:\t1" };
static char *const arguments[] = { "odd\nname) (", "--odd", "", "a b", "\n\n", ") R 1 (", "\377", NULL };
static char *const environment[] = { "LINES=one\ntwo", "=", "EMPTY=", ") R 1 (=x", NULL };

static int ready[2];
static volatile pid_t *tids;    /* shared: of each thread */

static void tell(void)
{
    MUST((int)write(ready[1], "r", 1));
}

static void await(int count)
{
    char byte;
    while (count--)
        CHECK(read(ready[0], &byte, 1) == 1, "somebody did not get ready");
}

/* The name as the kernel keeps it: 15 bytes, then one newline that it adds itself. */
static bool is_called(const char *directory, const char *name)
{
    char path[64], text[32] = "", wanted[20];
    snprintf(path, sizeof path, "%s/comm", directory);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    close(fd);
    snprintf(wanted, sizeof wanted, "%.15s\n", name);
    return got == (ssize_t)strlen(wanted) && memcmp(text, wanted, (size_t)got) == 0;
}

static bool process_is_called(pid_t pid, const char *name)
{
    char directory[32];
    snprintf(directory, sizeof directory, "/proc/%d", pid);
    return is_called(directory, name);
}

static void *wait_in_thread(void *argument)
{
    int number = (int)(intptr_t)argument;
    tids[number] = (pid_t)syscall(SYS_gettid);
    prctl(PR_SET_NAME, names[COUNT - 1 - number]);
    tell();
    fidelity_await_go();
    if (!is_called("/proc/thread-self", names[COUNT - 1 - number]))
        _exit(90);
    if (number % 2)             /* its process has no first thread any more */
        _exit(number);
    return NULL;
}

static void __attribute__((noreturn)) live(int number)
{
    pthread_t thread;
    prctl(PR_SET_NAME, names[number]);
    if (pthread_create(&thread, NULL, wait_in_thread, (void *)(intptr_t)number) != 0)
        _exit(91);
    if (number % 2)
        syscall(SYS_exit, 0);
    pthread_join(thread, NULL);
    _exit(process_is_called(getpid(), names[number]) ? number : 92);
}

/* Odd numbers are killed, even ones end by themselves. */
static void __attribute__((noreturn)) end(int number)
{
    MUST(setuid(FIRST_USER + (unsigned)number));
    prctl(PR_SET_NAME, names[number]);
    if (number % 2)
        raise(SIGKILL);
    _exit(40 + number);
}

static void check_zombie(pid_t pid, int number)
{
    char path[32], user[32];
    int status;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    const char *text = fidelity_file(path), *state = strstr(text, "\nState:\tZ");
    snprintf(user, sizeof user, "\nUid:\t%d\t", FIRST_USER + number);
    CHECK(process_is_called(pid, names[number]), "the zombie %d has another name", number);
    CHECK(state && strstr(text, user), "the zombie %d is none, or is another user's", number);
    CHECK(waitpid(pid, &status, 0) == pid, "the zombie %d is not my child", number);
    CHECK(number % 2 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : WIFEXITED(status) && WEXITSTATUS(status) == 40 + number,
          "the zombie %d has status %#x", number, status);
}

static size_t read_all(const char *path, char *text, size_t size)
{
    int fd = MUST(open(path, O_RDONLY | O_CLOEXEC));
    ssize_t got = MUST(read(fd, text, size));
    close(fd);
    return (size_t)got;
}

/* The program that was started with odd arguments: they are what they were, for itself and for others. */
static int run_started(char **argv)
{
    char seen[256], wanted[256];
    size_t used = 0;
    for (int i = 0; arguments[i]; i++)
        used += (size_t)sprintf(wanted + used, "%s", arguments[i]) + 1;
    fidelity_await_go();
    for (int i = 0; arguments[i]; i++)
        if (!argv[i] || strcmp(argv[i], arguments[i]) != 0)
            return 1;
    if (read_all("/proc/self/cmdline", seen, sizeof seen) != used || memcmp(seen, wanted, used) != 0)
        return 2;
    if (read(LEAVE, seen, 1) != 0)
        return 4;
    return environ[0] && strcmp(environ[0], environment[0]) == 0 && !environ[4] ? STARTED : 3;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--odd") == 0)
        return run_started(argv);
    pid_t living[COUNT], zombies[COUNT];
    char path[64], before[256], after[256];
    tids = MUST(mmap(NULL, sizeof *tids * COUNT, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    MUST(pipe(ready));
    for (int i = 0; i < COUNT; i++) {
        if ((living[i] = fidelity_fork()) == 0)
            live(i);
        if ((zombies[i] = fidelity_fork()) == 0)
            end(i);
        siginfo_t info;
        MUST(waitid(P_PID, (id_t)zombies[i], &info, WEXITED | WNOWAIT));
    }
    await(COUNT);
    int leave[2];
    MUST(pipe2(leave, O_CLOEXEC));
    pid_t started = fidelity_fork();
    if (started == 0)
        _exit(MUST(dup2(leave[0], LEAVE)) < 0 || execve("/proc/self/exe", arguments, environment));
    snprintf(path, sizeof path, "/proc/%d/cmdline", started);
    size_t length;
    while ((length = read_all(path, before, sizeof before)) == 0 || memcmp(before, arguments[0], strlen(arguments[0])) != 0)
        fidelity_sleep_ms(5);

    fidelity_ready();
    fidelity_await_go();

    CHECK(read_all(path, after, sizeof after) == length && memcmp(before, after, length) == 0, "the arguments of another process differ");
    close(leave[1]);
    fidelity_expect_exit(started, STARTED);
    for (int i = 0; i < COUNT; i++) {
        siginfo_t info;
        MUST(waitid(P_PID, (id_t)living[i], &info, WEXITED | WNOWAIT));
        CHECK(process_is_called(living[i], names[i]), "the process %d has another name", i);
        fidelity_expect_exit(living[i], i);
        check_zombie(zombies[i], i);
    }
    fidelity_pass();
}
