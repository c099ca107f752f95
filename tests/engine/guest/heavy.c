/*
 * A process with as much as it is told: `heavy [descriptors=N] [maps=N] [threads=N] [signals=N] [more=N]`, and N more of the kind. It says `done`, and
 * then, once a second, writes to /tmp/beat whether all of it is still there.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define PAGE 4096

static int descriptors, maps, threads, signals, more;
static char *region;

static void *sleeper(void *unused)
{
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

static void make_descriptors(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = 0; i < descriptors; i++)
        if (open("/etc/passwd", O_RDONLY) < 0)
            exit(3);
}

/* Pages that differ in their protection from their neighbours do not merge; every 64th one is written to. */
static void make_maps(void)
{
    region = mmap(NULL, (size_t)maps * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < maps; i++) {
        if (i % 64 == 0)
            memcpy(region + (size_t)i * PAGE, &i, sizeof i);
        if (i % 2 && mprotect(region + (size_t)i * PAGE, PAGE, PROT_READ) < 0)
            exit(4);
    }
}

static void make_threads(void)
{
    pthread_attr_t small;
    pthread_t thread;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread, &small, sleeper, NULL))
            exit(5);
}

/* Blocked, so that they stay pending. */
static void make_signals(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (int i = 0; i < signals; i++)
        if (sigqueue(getpid(), SIGRTMIN, (union sigval){ .sival_int = i }) < 0)
            exit(9);
}

static int whole(void)
{
    for (int i = 0; i < maps; i += 64)
        if (*(int *)(region + (size_t)i * PAGE) != i)
            return 0;
    return descriptors == 0 || fcntl(4 + descriptors, F_GETFD) >= 0;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        sscanf(argv[i], "descriptors=%d", &descriptors);
        sscanf(argv[i], "maps=%d", &maps);
        sscanf(argv[i], "threads=%d", &threads);
        sscanf(argv[i], "signals=%d", &signals);
        sscanf(argv[i], "more=%d", &more);
    }
    int ready[2];
    char byte = 0;
    if (pipe(ready) < 0)
        return 6;
    bool first = true;
    for (int i = 0; first && i < more; i++)
        first = fork() != 0;
    make_descriptors();
    make_maps();
    make_signals();         /* before the threads, which block them as well */
    make_threads();
    if (!first) {
        if (write(ready[1], &byte, 1) != 1)
            return 7;
        for (;;)
            pause();
    }
    for (int i = 0; i < more; i++)
        if (read(ready[0], &byte, 1) != 1)
            return 8;
    puts("done");
    fflush(stdout);
    for (int beat = 0;; beat++) {
        FILE *file = fopen("/tmp/beat", "w");
        if (file) {
            fprintf(file, "%d %d\n", beat, whole());
            fclose(file);
        }
        sleep(1);
    }
}
