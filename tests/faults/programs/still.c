/*
 * A workspace that stands still: many kinds of state in a few processes, every thread blocked for good, so that whatever differs later was
 * done by somebody else. `still` starts everything, writes /tmp/still.ready and waits.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MUST(call) \
    ({ \
        __typeof__(call) result_ = (call); \
        if (result_ == (__typeof__(call))-1) { \
            fprintf(stderr, "still: line %d: %s: %s\n", __LINE__, #call, strerror(errno)); \
            exit(1); \
        } \
        result_; \
    })
#define PATTERN_BYTES (1u << 20)
#define FAR_SECONDS 100000

static void fill(char *at, size_t size, unsigned seed)
{
    for (size_t i = 0; i < size; i += sizeof seed) {
        seed = seed * 1103515245u + 12345u;
        memcpy(at + i, &seed, sizeof seed);
    }
}

static void make_memory(void)
{
    fill(MUST(mmap(NULL, PATTERN_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), PATTERN_BYTES, 1);
    fill(MUST(mmap(NULL, 64 << 10, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)), 64 << 10, 2);
    char *sealed = MUST(mmap(NULL, 16 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fill(sealed, 16 << 10, 3);
    MUST(mprotect(sealed, 8 << 10, PROT_READ));
    MUST(mmap(NULL, 1ul << 32, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    int memfd = MUST(memfd_create("still", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    MUST(ftruncate(memfd, 8192));
    fill(MUST(mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0)), 8192, 4);
    int segment = MUST(shmget(IPC_PRIVATE, 8192, 0600));
    fill(MUST(shmat(segment, NULL, 0)), 8192, 5);
}

static void make_files(void)
{
    int fd = MUST(open("/tmp/still.file", O_RDWR | O_CREAT | O_APPEND, 0600));
    MUST((int)write(fd, "some bytes", 10));
    MUST(lseek(fd, 3, SEEK_SET));
    struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1, .l_len = 4 };
    MUST(fcntl(fd, F_SETLK, &lock));
    MUST(flock(MUST(open("/tmp/still.file", O_RDONLY)), LOCK_SH));
    int gone = MUST(open("/tmp/still.gone", O_RDWR | O_CREAT, 0600));
    MUST((int)write(gone, "unlinked", 8));
    MUST(unlink("/tmp/still.gone"));
    MUST(fcntl(gone, F_SETOWN, getpid()));
    MUST(fcntl(gone, F_SETSIG, SIGURG));
    int watch = MUST(inotify_init1(0));
    MUST(inotify_add_watch(watch, "/tmp", IN_DELETE_SELF));
    MUST(mkdir("/tmp/still.directory", 0700));
    MUST(chdir("/tmp/still.directory"));
    umask(027);
}

static void make_terminal(void)
{
    int master = MUST(open("/dev/ptmx", O_RDWR | O_NOCTTY)), unlocked = 0;
    MUST(ioctl(master, TIOCSPTLCK, &unlocked));
    int slave = MUST(ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY));
    MUST((int)write(master, "typed\n", 6));
    MUST((int)write(slave, "shown\n", 6));
}

/* A connection with unread bytes, in both queues; a datagram not read; a member of a multicast group; a listener for news of the kernel. */
static void make_sockets(void)
{
    struct sockaddr_in here = { AF_INET, htons(4712), { htonl(INADDR_LOOPBACK) }, { 0 } };
    int listener = MUST(socket(AF_INET, SOCK_STREAM, 0)), on = 1;
    MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(bind(listener, (struct sockaddr *)&here, sizeof here));
    MUST(listen(listener, 1));
    int connector = MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(connect(connector, (struct sockaddr *)&here, sizeof here));
    int acceptor = MUST(accept(listener, NULL, NULL));
    MUST(setsockopt(acceptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
    MUST(setsockopt(acceptor, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    MUST((int)write(connector, "there", 5));
    MUST((int)write(acceptor, "and back", 8));
    int receiver = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    here.sin_port = htons(4713);
    MUST(bind(receiver, (struct sockaddr *)&here, sizeof here));
    struct ip_mreqn group = { { htonl(0xe0000105) }, { htonl(INADDR_LOOPBACK) }, 1 };
    MUST(setsockopt(receiver, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof group));
    int sender = MUST(socket(AF_INET, SOCK_DGRAM, 0));
    MUST(connect(sender, (struct sockaddr *)&here, sizeof here));
    MUST((int)write(sender, "datagram", 8));
    int news = MUST(socket(AF_NETLINK, SOCK_RAW, 0 /* NETLINK_ROUTE */));
    struct sockaddr_nl links = { .nl_family = AF_NETLINK, .nl_groups = 1 };
    MUST(bind(news, (struct sockaddr *)&links, sizeof links));
    int left[2];
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, left));
    MUST((int)write(left[1], "last words", 10));
    MUST(close(left[1]));
}

static void make_channels(void)
{
    int ends[2];
    MUST(pipe(ends));
    MUST((int)write(ends[1], "in the pipe", 11));
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    MUST((int)write(pair[0], "in the socket", 13));
    int listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    struct sockaddr_un address = { AF_UNIX, "/tmp/still.socket" };
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
    MUST(listen(listener, 4));
    int tcp = MUST(socket(AF_INET, SOCK_STREAM, 0));
    struct sockaddr_in any = { AF_INET, htons(4711), { htonl(INADDR_LOOPBACK) }, { 0 } };
    MUST(bind(tcp, (struct sockaddr *)&any, sizeof any));
    MUST(listen(tcp, 4));
    int event = MUST(eventfd(42, 0));
    int set = MUST(epoll_create1(0));
    struct epoll_event entry = { EPOLLIN, { .u64 = 7 } };
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, pair[0], &entry));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, event, &entry));
    sigset_t usr;
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    MUST(signalfd(-1, &usr, 0));
    make_terminal();
    make_sockets();
}

static void handler(int signal) { (void)signal; }

/* Not before there are children: a lock is not inherited, but the mappings that it has cut are. */
static void make_locks(void)
{
    char *locked = MUST(mmap(NULL, 32 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    fill(locked, 32 << 10, 6);
    MUST(mlock(locked, 16 << 10));
    MUST(mlock(MUST(mmap(NULL, 8 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), 8 << 10));
    MUST(madvise(MUST(mmap(NULL, 8 << 10, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)), 8 << 10, MADV_DONTDUMP));
}

static void make_attributes(void)
{
    int score = MUST(open("/proc/self/oom_score_adj", O_WRONLY));
    MUST((int)write(score, "300", 3));
    MUST(close(score));
    MUST((int)syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6));     /* best effort */
    MUST(prctl(PR_SET_TIMERSLACK, 70000, 0, 0, 0));
    struct sched_param none = { 0 };
    MUST(sched_setscheduler(0, SCHED_BATCH, &none));
}

static void make_timers_and_signals(void)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };
    MUST(sigaction(SIGUSR2, &action, NULL));
    MUST((int)(signal(SIGPIPE, SIG_IGN) != SIG_ERR) - 1);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigaddset(&blocked, SIGRTMIN + 3);
    MUST(sigprocmask(SIG_BLOCK, &blocked, NULL));
    MUST(sigqueue(getpid(), SIGRTMIN + 3, (union sigval){ .sival_int = 99 }));
    timer_t timer;
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer));
    struct itimerspec far = { { 0, 0 }, { FAR_SECONDS, 0 } };
    MUST(timer_settime(timer, 0, &far, NULL));
    struct itimerval real = { { 0, 0 }, { FAR_SECONDS, 0 } };
    MUST(setitimer(ITIMER_REAL, &real, NULL));
    MUST(timerfd_settime(MUST(timerfd_create(CLOCK_BOOTTIME, 0)), 0, &far, NULL));
    struct rlimit limit = { 300, 400 };
    MUST(setrlimit(RLIMIT_NOFILE, &limit));
    if (getpriority(PRIO_PROCESS, 0) < 3)       /* a lane that runs nicer than that could not raise it */
        MUST(setpriority(PRIO_PROCESS, 0, 3));
}

/*
 * Threads, each blocked in another way. Of two calls a stop is visible to the program, whoever stops it: they end with EINTR (livefork conceals
 * that when it is not killed first). They are made again with errno as it was.
 */
static void *__attribute__((noreturn)) in_futex(void *unused)
{
    (void)unused;
    static int word;
    for (;;)
        syscall(SYS_futex, &word, 0 /* FUTEX_WAIT */, 0, NULL, NULL, 0);
}

static void *in_read(void *fd)
{
    char byte;
    while (read(*(int *)fd, &byte, 1) <= 0)
        ;
    return NULL;
}

static void *__attribute__((noreturn)) in_poll(void *fd)
{
    struct pollfd wanted = { *(int *)fd, POLLIN, 0 };
    for (;;)
        poll(&wanted, 1, -1);
}

static void *__attribute__((noreturn)) in_epoll(void *unused)
{
    (void)unused;
    int set = MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event got;
    for (;;) {
        errno = 0;
        epoll_wait(set, &got, 1, -1);
    }
}

static void *__attribute__((noreturn)) in_sleep(void *unused)
{
    (void)unused;
    for (;;) {
        struct timespec far = { FAR_SECONDS, 0 };
        nanosleep(&far, NULL);
    }
}

static void *__attribute__((noreturn)) in_sigwait(void *unused)
{
    (void)unused;
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGUSR1);
    for (;;) {
        errno = 0;
        sigwaitinfo(&wanted, NULL);
    }
}

static void start_threads(void)
{
    static int ends[2];
    MUST(pipe(ends));
    pthread_attr_t small;       /* the usual 8 MiB would be read for each comparison */
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    void *(*const bodies[])(void *) = { in_futex, in_read, in_poll, in_epoll, in_sleep, in_sigwait };
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &small, bodies[i], &ends[0]) != 0)
            exit(1);
    }
}

static void __attribute__((noreturn)) wait_for_good(void)
{
    for (;;)
        pause();
}

static void start_children(void)
{
    if (MUST(fork()) == 0)
        _exit(3);           /* stays a zombie */
    pid_t stopped = MUST(fork());
    if (stopped == 0)
        wait_for_good();
    MUST(kill(stopped, SIGSTOP));
    siginfo_t info;
    MUST(waitid(P_PID, (id_t)stopped, &info, WSTOPPED | WNOWAIT));
    if (MUST(fork()) == 0) {
        MUST(setsid());
        if (MUST(fork()) == 0)
            wait_for_good();
        MUST(prctl(PR_SET_NAME, "odd) name", 0, 0, 0));
        MUST(setgid(1000));
        MUST(setuid(1000));
        wait_for_good();
    }
}

int main(void)
{
    make_memory();
    make_files();
    make_channels();
    start_children();
    make_timers_and_signals();
    make_locks();
    make_attributes();
    start_threads();
    struct timespec settle = { 0, 200 * 1000 * 1000 };
    nanosleep(&settle, NULL);
    MUST(close(MUST(open("/tmp/still.ready", O_WRONLY | O_CREAT, 0600))));
    wait_for_good();
}
