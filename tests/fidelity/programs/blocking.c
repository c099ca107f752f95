/* System calls that block across the fork go on in source and branch without an error and end when they should. */
#include "fidelity.h"

#include <linux/futex.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define LATE 15                 /* seconds that a loaded machine may take to run somebody */

struct board {
    uint32_t word;
    int pipe_ready;
};

static struct board *board;
static int data[2];
static double deadline;

enum { SLEEP, SLEEP_UNTIL, POLL, POLL_FOREVER, FUTEX, READ, WAIT, PAUSE, SELECT, EPOLL, CASES };

static void __attribute__((noreturn)) block(int what)
{
    errno = 0;
    long result = -99;
    double now = fidelity_now(CLOCK_MONOTONIC);
    struct timespec left = { 0, 0 };
    struct timespec until = { (time_t)deadline, (long)((deadline - (double)(time_t)deadline) * 1e9) };
    struct pollfd wait = { data[0], POLLIN, 0 };
    switch (what) {
    case SLEEP:
        left.tv_sec = (time_t)(deadline - now);
        result = nanosleep(&left, NULL) == 0 && fidelity_now(CLOCK_MONOTONIC) >= deadline - 1 ? 0 : 1;
        break;
    case SLEEP_UNTIL:
        result = clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        now = fidelity_now(CLOCK_MONOTONIC);
        if (result == 0 && (now < deadline || now > deadline + LATE))
            result = 2;
        break;
    case POLL: {
        struct pollfd nothing = { -1, 0, 0 };
        result = poll(&nothing, 1, (int)((deadline - now) * 1000));
        break;
    }
    case POLL_FOREVER:
        result = poll(&wait, 1, -1) == 1 ? 0 : 3;
        break;
    case FUTEX:
        result = syscall(SYS_futex, &board->word, FUTEX_WAIT, 0, NULL, NULL, 0);
        /* Started again only after the word had changed: the kernel's own restart says the same. */
        if (result < 0 && errno == EAGAIN && __atomic_load_n(&board->word, __ATOMIC_SEQ_CST))
            result = 0;
        break;
    case READ: {
        char byte;
        result = read(data[0], &byte, 1) == 1 ? 0 : 4;
        break;
    }
    case WAIT: {
        pid_t child = fork();
        if (child == 0) {
            while (__atomic_load_n(&board->word, __ATOMIC_SEQ_CST) == 0)
                fidelity_sleep_ms(5);
            _exit(21);
        }
        int status;
        result = waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 21 ? 0 : 5;
        break;
    }
    case PAUSE: {
        sigset_t one;
        sigemptyset(&one);
        sigaddset(&one, SIGUSR1);
        result = sigwaitinfo(&one, NULL) == SIGUSR1 ? 0 : 6;
        break;
    }
    case SELECT: {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(data[0], &set);
        result = select(data[0] + 1, &set, NULL, NULL, NULL) == 1 ? 0 : 7;
        break;
    }
    case EPOLL: {
        struct epoll_event event = { .events = EPOLLIN };
        int epoll = epoll_create1(0);
        epoll_ctl(epoll, EPOLL_CTL_ADD, data[0], &event);
        result = epoll_wait(epoll, &event, 1, -1) == 1 ? 0 : 8;
        break;
    }
    }
    _exit(result == 0 ? 0 : errno ? errno : 90);
}

int main(void)
{
    static const char *const names[] = { "nanosleep", "clock_nanosleep", "poll with a timeout", "poll", "futex", "read", "waitpid", "sigwaitinfo",
                                         "select", "epoll_wait" };
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    MUST(pipe(data));
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, NULL);
    deadline = fidelity_now(CLOCK_MONOTONIC) + 4;
    pid_t children[CASES];
    for (int i = 0; i < CASES; i++) {
        children[i] = fidelity_fork();
        if (children[i] == 0)
            block(i);
    }
    fidelity_sleep_ms(100);
    fidelity_ready();
    fidelity_await_go();
    for (int i = 0; i < CASES; i++) {
        int status;
        pid_t got = waitpid(children[i], &status, WNOHANG);
        bool timed = i == SLEEP || i == SLEEP_UNTIL || i == POLL;
        CHECK(got == 0 || timed, "%s ended by itself with status 0x%x", names[i], status);
        if (got)
            children[i] = WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -status;
    }
    board->word = 1;
    syscall(SYS_futex, &board->word, FUTEX_WAKE, 100, NULL, NULL, 0);
    kill(children[PAUSE], SIGUSR1);
    fidelity_sleep_ms(50);
    for (int i = 0; i < CASES; i++)
        MUST((int)write(data[1], "x", 1));
    for (int i = 0; i < CASES; i++) {
        int status = 0;
        CHECK(children[i] >= 0, "%s failed", names[i]);
        if (children[i] > 0)
            waitpid(children[i], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: status 0x%x (%s)", names[i], status, strerror(WEXITSTATUS(status)));
    }
    fidelity_pass();
}
