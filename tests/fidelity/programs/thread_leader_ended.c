/* A process whose first thread has ended while others live: it keeps its id, its threads, timers and pending signals, and its parent can wait for it. */
#include "fidelity.h"

#include <pthread.h>
#include <sys/time.h>

#define THREADS 3
#define LAST_STATUS 37

struct board {
    int started, gone_on, alarm, looked;
    int wrong;
};

static volatile struct board *board;
static pid_t process;
static _Thread_local int mine;

static void *stay(void *argument)
{
    mine = (int)(long)argument;
    pid_t tid = (pid_t)syscall(SYS_gettid);
    char name[16];
    snprintf(name, sizeof name, "left-%d", mine);
    prctl(PR_SET_NAME, name);
    __atomic_add_fetch(&board->started, 1, __ATOMIC_SEQ_CST);
    fidelity_await_go();
    char now[16] = "";
    prctl(PR_GET_NAME, now);
    if (mine != (int)(long)argument || tid != (pid_t)syscall(SYS_gettid) || getpid() != process || strcmp(now, name) != 0)
        board->wrong = 1;
    if (mine == 0) {
        sigset_t set;
        siginfo_t info;
        struct timespec wait = { 15, 0 };
        sigemptyset(&set);
        sigaddset(&set, SIGRTMIN + 1);
        if (sigtimedwait(&set, &info, &wait) != SIGRTMIN + 1 || info.si_value.sival_int != 5 || info.si_code != SI_QUEUE)
            board->wrong = 2;
        sigemptyset(&set);
        sigaddset(&set, SIGALRM);
        board->alarm = sigtimedwait(&set, &info, &wait) == SIGALRM;
    }
    __atomic_add_fetch(&board->gone_on, 1, __ATOMIC_SEQ_CST);
    while (mine == 0 && (!board->looked || board->gone_on < THREADS))
        fidelity_sleep_ms(20);
    syscall(SYS_exit, mine == 0 ? LAST_STATUS : 0);     /* the status of the last thread to end is that of the process */
    return NULL;
}

static void __attribute__((noreturn)) run(void)
{
    process = getpid();
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN + 1);
    sigaddset(&set, SIGALRM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    MUST(sigqueue(process, SIGRTMIN + 1, (union sigval){ .sival_int = 5 }));
    struct itimerval timer = { { 0, 0 }, { 4, 0 } };
    MUST(setitimer(ITIMER_REAL, &timer, NULL));
    for (long i = 0; i < THREADS; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, stay, (void *)i) == 0, "no thread");
    }
    prctl(PR_SET_NAME, "leader");
    syscall(SYS_exit, 1);
    __builtin_unreachable();
}

static char state_of(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    char *name_end = strrchr(fidelity_file(path), ')');
    return name_end ? name_end[2] : '?';
}

int main(void)
{
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = fidelity_fork();
    if (child == 0)
        run();
    while (__atomic_load_n(&board->started, __ATOMIC_SEQ_CST) < THREADS || state_of(child) != 'Z')
        fidelity_sleep_ms(5);
    fidelity_ready();
    fidelity_await_go();

    char path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", child);
    CHECK(state_of(child) == 'Z', "the first thread is alive again: %c", state_of(child));
    CHECK(strcmp(fidelity_file(path), "leader\n") == 0, "its name is %s", fidelity_file(path));
    int status;
    CHECK(waitpid(child, &status, WNOHANG) == 0, "the process ended with its first thread");
    board->looked = 1;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == LAST_STATUS, "its status is %#x", status);
    CHECK(board->gone_on == THREADS && board->alarm == 1 && board->wrong == 0, "%d threads went on, alarm %d, wrong %d", board->gone_on, board->alarm,
          board->wrong);
    fidelity_pass();
}
