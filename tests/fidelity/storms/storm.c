/*
 * storm KIND: processes that change as fast as they can, WORKERS of one kind or (`all`) one of each, while their parent counts on in /tmp/beat.
 * A storm blows over after LAST_SECONDS, in the source as in each branch.
 */
#include "../programs/fidelity.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#define WORKERS 4
#define LAST_SECONDS 150
#define BEAT_MS 20
#define STACK_SIZE (64 << 10)
#define END "STORM_END"         /* in the environment of a worker that has become a new program: until when it goes on */

static void *end_at_once(void *unused) { return unused; }

static void reap(pid_t child)
{
    while (child > 0 && waitpid(child, NULL, __WALL) < 0 && errno == EINTR)
        ;
}

static void storm_fork(unsigned round)
{
    pid_t child = fork();
    if (child == 0)
        _exit((int)round % 100);
    reap(child);
}

static void storm_exec(unsigned round)
{
    (void)round;
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", "storm", "nothing", (char *)NULL);
        _exit(1);
    }
    reap(child);
}

/* The worker itself becomes the same program again and again, the last times from a thread that is not its first. */
static void *execute_storm(void *unused)
{
    execl("/proc/self/exe", "storm", "become", (char *)NULL);
    return unused;
}

static void storm_become(unsigned round)
{
    pthread_t thread;
    (void)round;
    if (getpid() % 2 && pthread_create(&thread, NULL, execute_storm, NULL) == 0)
        pthread_join(thread, NULL);
    execute_storm(NULL);
}

/* Orphans: the parent ends while its child still makes children of its own. Each round waits until all have ended, or they would pile up. */
static void storm_orphans(unsigned round)
{
    int ends[2];
    char byte;
    (void)round;
    if (pipe(ends) < 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        if (fork() == 0)
            if (fork() == 0)
                usleep(100);
        _exit(0);
    }
    reap(child);
    close(ends[1]);
    while (read(ends[0], &byte, 1) < 0 && errno == EINTR)
        ;
    close(ends[0]);
}

static void storm_kill(unsigned round)
{
    pid_t child = fork();
    if (child == 0)
        for (;;) {
            pid_t self = getpid(), own = fork();
            while (own == 0)
                if (getppid() != self)
                    _exit(0);
            usleep(50);
            kill(own, SIGKILL);
            reap(own);
        }
    usleep(round % 7 * 150);
    kill(child, round % 2 ? SIGKILL : SIGTERM);
    reap(child);
}

/* Whoever lives kills whoever else does: children their parent and each other, the kernel in their name. */
static void storm_duel(unsigned round)
{
    pid_t child = fork();
    if (child == 0) {
        timer_t timer;
        struct sigevent kill_me = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL };
        struct itimerspec soon = { .it_value = { 0, 1 + round % 11 * 100000 } };
        if (round % 3 == 0)
            setpgid(0, 0);
        pid_t self = getpid(), rival = fork();
        if (rival == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            usleep(round % 13 * 50);
            kill(round % 3 ? self : 0, SIGKILL);
            _exit(0);
        }
        if (round % 2 && timer_create(CLOCK_MONOTONIC, &kill_me, &timer) == 0)
            timer_settime(timer, 0, &soon, NULL);
        for (int i = 0; i < 2000; i++)
            getppid();
        kill(rival, SIGKILL);
        reap(rival);
        _exit(0);
    }
    reap(child);
}

static void storm_stop(unsigned round)
{
    pid_t child = fork();
    if (child == 0)
        for (;;)
            getppid();
    kill(child, SIGSTOP);
    usleep(round % 5 * 100);
    kill(child, SIGCONT);
    usleep(100);
    kill(child, SIGKILL);
    reap(child);
}

static void storm_open(unsigned round)
{
    int ends[2], pair[2];
    int file = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (pipe(ends) == 0 && socketpair(AF_UNIX, round % 2 ? SOCK_STREAM : SOCK_DGRAM, 0, pair) == 0) {
        dup2(ends[0], 100 + (int)round % 50);
        int event = eventfd(round, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
        if (write(ends[1], "x", 1) != 1 || write(pair[0], "y", 1) != 1)
            _exit(1);
        close(event), close(timer), close(pair[0]), close(pair[1]);
    }
    close(ends[0]), close(ends[1]), close(file), close(100 + ((int)round + 25) % 50);
}

static void storm_sockets(unsigned round)
{
    struct sockaddr_un_like { unsigned short family; char path[40]; } address = { .family = AF_UNIX };
    int length = 2 + 1 + snprintf(address.path + 1, sizeof address.path - 1, "storm-%d-%u", getpid(), round);
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(server, (struct sockaddr *)&address, (socklen_t)length) == 0 && listen(server, 4) == 0
        && connect(client, (struct sockaddr *)&address, (socklen_t)length) == 0) {
        int other = accept4(server, NULL, NULL, SOCK_CLOEXEC);
        if (write(client, "x", 1) != 1)
            _exit(1);
        close(other);
    }
    close(server), close(client);
}

static void storm_threads(unsigned round)
{
    pthread_t threads[8];
    int count = 0;
    (void)round;
    while (count < 8 && pthread_create(&threads[count], NULL, end_at_once, NULL) == 0)
        count++;
    while (count > 0)
        pthread_join(threads[--count], NULL);
}

static void *fork_and_reap(void *unused)
{
    storm_fork(0);
    return unused;
}

/* Threads that fork, and a process that ends with all of them. */
static void storm_mixed(unsigned round)
{
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        for (int i = 0; i < 3; i++)
            pthread_create(&thread, NULL, fork_and_reap, NULL);
        usleep(round % 4 * 100);
        _exit(0);
    }
    reap(child);
}

static void storm_vfork(unsigned round)
{
    pid_t child = vfork();
    if (child == 0) {
        if (round % 2)
            execl("/proc/self/exe", "storm", "nothing", (char *)NULL);
        _exit(0);
    }
    reap(child);
}

static int nap(void *unused)
{
    (void)unused;
    return 0;
}

/* As glibc's and Go's process starters do it, and threads that no library knows of. */
static void storm_clone(unsigned round)
{
    static char stacks[2][STACK_SIZE] __attribute__((aligned(16)));
    static const int flags[] = { CLONE_VM | CLONE_VFORK | SIGCHLD, CLONE_FILES | SIGCHLD, CLONE_FS | SIGCHLD, SIGCHLD, SIGUSR1 };
    pid_t child = clone(nap, stacks[round % 2] + STACK_SIZE, flags[round % 5], NULL);
    reap(child);
}

static void storm_maps(unsigned round)
{
    size_t size = (1 + round % 64) << 12;
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, (round % 3 ? MAP_PRIVATE : MAP_SHARED) | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return;
    memset(at, (int)round, size);
    mprotect(at, 4096, PROT_READ);
    pid_t child = round % 16 ? 0 : fork();
    if (child == 0 && round % 16 == 0)
        _exit(at[0] != (char)round);
    reap(child);
    munmap(at, size);
}

static void storm_sessions(unsigned round)
{
    pid_t child = fork();
    if (child == 0) {
        if (round % 2)
            setsid();
        else
            setpgid(0, 0);
        if (fork() == 0)
            setpgid(0, 0);
        _exit(0);
    }
    reap(child);
}

/* What the launcher of a browser's sandbox does, a hundred times a second. */
static void storm_namespaces(unsigned round)
{
    pid_t child = fork();
    if (child == 0) {
        pid_t first = unshare(CLONE_NEWUSER | (round % 2 ? CLONE_NEWPID : CLONE_NEWNET)) == 0 ? fork() : -1;
        if (first == 0)
            usleep(200);
        else
            reap(first);
        _exit(0);
    }
    reap(child);
}

static void storm_signals(unsigned round)
{
    union sigval value = { .sival_int = (int)round };
    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &old);
    sigqueue(getpid(), SIGRTMIN, value);
    raise(SIGUSR1);
    siginfo_t info;
    struct timespec none = { 0 };
    while (sigtimedwait(&all, &info, &none) > 0)
        ;
    sigprocmask(SIG_SETMASK, &old, NULL);
}

static const struct kind { const char *name; void (*step)(unsigned round); } kinds[] = {
    { "fork", storm_fork }, { "exec", storm_exec }, { "become", storm_become }, { "orphans", storm_orphans }, { "kill", storm_kill },
    { "duel", storm_duel },
    { "stop", storm_stop }, { "open", storm_open }, { "sockets", storm_sockets }, { "threads", storm_threads }, { "mixed", storm_mixed },
    { "vfork", storm_vfork }, { "clone", storm_clone }, { "maps", storm_maps }, { "sessions", storm_sessions },
    { "namespaces", storm_namespaces }, { "signals", storm_signals },
};
#define MOST_PROCESSES 1000
#define KINDS (sizeof kinds / sizeof *kinds)

static const struct kind *kind_named(const char *name)
{
    for (size_t i = 0; i < KINDS; i++)
        if (strcmp(name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
}

/* Processes whose parents have gone wait for init to take note of them. On a busy machine it falls behind, and a workspace of more than 4096
 * processes is rightly refused: this is about how fast they come and go. */
static void let_init_catch_up(double end)
{
    while (fidelity_now(CLOCK_MONOTONIC) < end) {
        DIR *directory = opendir("/proc");
        int processes = 0;
        if (!directory)
            return;
        for (struct dirent *entry; (entry = readdir(directory));)
            processes += entry->d_name[0] >= '1' && entry->d_name[0] <= '9';
        closedir(directory);
        if (processes < MOST_PROCESSES)
            return;
        usleep(10000);
    }
}

static void work(const struct kind *kind, double end)
{
    for (unsigned round = 0; fidelity_now(CLOCK_MONOTONIC) < end; round++) {
        kind->step(round);
        if (round % 64 == 63)
            let_init_catch_up(end);
    }
    _exit(0);
}

static void start(const struct kind *kind, double end)
{
    if (fidelity_fork() == 0)
        work(kind, end);
}

static void beat(int number)
{
    char text[24];
    int fd = open("/tmp/beat", O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || pwrite(fd, text, (size_t)snprintf(text, sizeof text, "%09d", number), 0) < 0)
        _exit(97);
    close(fd);
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "", *going_on = getenv(END);
    char text[32];
    if (strcmp(name, "nothing") == 0)
        return 0;
    if (going_on)
        work(kind_named("become"), atof(going_on));
    double end = fidelity_now(CLOCK_MONOTONIC) + LAST_SECONDS;
    const struct kind *kind = kind_named(name);
    snprintf(text, sizeof text, "%f", end);
    setenv(END, text, 1);
    signal(SIGUSR1, SIG_IGN);
    for (int i = 0; i < WORKERS && kind; i++)
        start(kind, end);
    for (size_t i = 0; i < KINDS && !kind && strcmp(name, "all") == 0; i++)
        start(&kinds[i], end);
    for (int number = 1;; number++) {
        beat(number);
        usleep(BEAT_MS * 1000);
    }
}
