/*
 * A small coverage-guided fuzzer, so that nothing but gcc is needed.
 *
 *     fuzz TARGET SECONDS SEED CRASH DIRECTORY...
 *
 * Inputs are read from the directories; those that reach new code are added to the last one. The input being tried lies in the file CRASH: there
 * it is when a sanitizer, or the alarm clock, ends the program. `fuzz TARGET 0 0 CRASH FILE` tries one file.
 */
#include "targets.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAP_SIZE (1u << 14)
#define MOST_BYTES 4096u
#define MAX_INPUTS 4096
#define HANG_SECONDS 20
#define MOST_RESIDENT_KB (700l << 10)   /* parsers hand out what they allocate: start afresh then */

struct input { size_t size; unsigned char *bytes; };

static unsigned char seen[MAP_SIZE], now[MAP_SIZE];
static struct input inputs[MAX_INPUTS];
static int input_count;
static char *work;
static unsigned char *crash;        /* size in 8 bytes, then the input */
static uint64_t random_state;
static unsigned long runs, loaded, edges;

/* Called by the instrumented code at every edge, for the first time before AddressSanitizer is ready. */
void __attribute__((no_sanitize("address", "undefined"))) __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void)
{
    uintptr_t pc = (uintptr_t)__builtin_return_address(0);
    now[(pc ^ pc >> 14) % MAP_SIZE] = 1;
}

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static unsigned below(unsigned limit) { return limit ? (unsigned)(next_random() % limit) : 0; }

/* True when it reached something new. */
static bool attempt(const struct target *target, const unsigned char *bytes, size_t size)
{
    memcpy(crash, &size, sizeof size);
    memcpy(crash + sizeof size, bytes, size);
    memset(now, 0, sizeof now);
    alarm(HANG_SECONDS);
    target->run(bytes, size);
    alarm(0);
    runs++;
    bool fresh = false;
    for (unsigned i = 0; i < MAP_SIZE; i++) {
        if (now[i] > seen[i]) {
            seen[i] = 1;
            edges++;
            fresh = true;
        }
    }
    return fresh;
}

static void keep(const unsigned char *bytes, size_t size)
{
    if (input_count == MAX_INPUTS)
        return;
    inputs[input_count].bytes = malloc(size + 1);
    memcpy(inputs[input_count].bytes, bytes, size);
    inputs[input_count++].size = size;
}

static void save(const unsigned char *bytes, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%016lx", work, (unsigned long)next_random());
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
        perror(path);
    if (fd >= 0)
        close(fd);
}

static void load_file(const struct target *target, const char *path)
{
    unsigned char bytes[MOST_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, bytes, sizeof bytes);
    if (fd >= 0)
        close(fd);
    if (size < 0)
        return;
    attempt(target, bytes, (size_t)size);
    keep(bytes, (size_t)size);
}

static void load(const struct target *target, const char *path)
{
    DIR *directory = opendir(path);
    if (!directory) {
        load_file(target, path);
        return;
    }
    for (struct dirent *entry; (entry = readdir(directory));) {
        char name[4096];
        snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
        if (entry->d_name[0] != '.')
            load_file(target, name);
    }
    closedir(directory);
}

/* What /proc texts are made of. */
static const char *const words[] = {
    "0", "-1", "1", "4294967295", "2147483648", "9223372036854775807", "18446744073709551616", "99999999999999999999", "ffffffffffffffff", "7fffffff", "\n",
    " ", "\t", ":", "/", ")", "(", "-", "EOF", "\\012", " (deleted)", "lock:\t1: ", "inotify wd:", "tfd: ", "fhandle-bytes:", "f_handle:", "ID: ",
    "shared:", "master:", "VmFlags:", "[vdso]", "[vvar]", "anon_inode:", "/memfd:", "NSpid:\t", "\"root\"", "\"abort\"",
};

static size_t mutate(unsigned char *bytes, size_t size)
{
    for (unsigned times = 1 + below(4); times; times--) {
        unsigned at = below((unsigned)size + 1), length = 1 + below(16);
        const char *word = words[below(sizeof words / sizeof *words)];
        const struct input *other = input_count ? &inputs[below((unsigned)input_count)] : NULL;
        switch (below(7)) {
        case 0:
            if (at < size)
                bytes[at] ^= (unsigned char)(1u << below(8));
            break;
        case 1:
            if (at < size)
                bytes[at] = (unsigned char)below(256);
            break;
        case 2:                         /* take out */
            if (at + length <= size) {
                memmove(bytes + at, bytes + at + length, size - at - length);
                size -= length;
            }
            break;
        case 3:                         /* cut off */
            size = at;
            break;
        case 4:                         /* put a word in */
        case 5:
            length = (unsigned)strlen(word);
            if (size + length <= MOST_BYTES) {
                memmove(bytes + at + length, bytes + at, size - at);
                memcpy(bytes + at, word, length);
                size += length;
            }
            break;
        default:                        /* go on with the end of another */
            if (other && other->size) {
                unsigned from = below((unsigned)other->size);
                size_t rest = other->size - from;
                if (at + rest <= MOST_BYTES) {
                    memcpy(bytes + at, other->bytes + from, rest);
                    size = at + rest;
                }
            }
        }
    }
    return size;
}

static long resident_kb(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void fuzz(const struct target *target, char **argv, time_t deadline)
{
    unsigned char bytes[MOST_BYTES];
    while (time(NULL) < deadline) {
        bool stale = target->fresh_after && runs - loaded > target->fresh_after;
        if (stale || ((runs & 1023) == 0 && resident_kb() > MOST_RESIDENT_KB)) {
            char seconds[32], seed[32];
            snprintf(seconds, sizeof seconds, "%ld", (long)(deadline - time(NULL)));
            snprintf(seed, sizeof seed, "%lu", (unsigned long)(next_random() >> 1));
            argv[2] = seconds, argv[3] = seed;
            execv("/proc/self/exe", argv);
        }
        const struct input *base = input_count ? &inputs[below((unsigned)input_count)] : NULL;
        size_t size = base ? base->size : 0;
        if (base)
            memcpy(bytes, base->bytes, size);
        size = mutate(bytes, size);
        if (attempt(target, bytes, size)) {
            keep(bytes, size);
            save(bytes, size);
        }
    }
}

static unsigned char *map_crash_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    size_t size = MOST_BYTES + sizeof(size_t);
    void *map = fd < 0 || ftruncate(fd, (off_t)size) < 0 ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        perror(path);
        exit(2);
    }
    close(fd);
    return map;
}

int main(int argc, char **argv)
{
    const struct target *target = argc > 5 ? target_by_name(argv[1]) : NULL;
    if (!target) {
        fprintf(stderr, "usage: fuzz TARGET SECONDS SEED CRASH DIRECTORY...\ntargets:");
        for (target = targets; target->name; target++)
            fprintf(stderr, " %s", target->name);
        fprintf(stderr, "\n");
        return 2;
    }
    long seconds = atol(argv[2]);
    random_state = strtoull(argv[3], NULL, 10) * 2 + 1;
    crash = map_crash_file(argv[4]);
    work = argv[argc - 1];
    time_t deadline = time(NULL) + seconds;
    for (int i = 5; i < argc; i++)
        load(target, argv[i]);
    loaded = runs;
    fuzz(target, argv, deadline);
    printf("%s: %lu runs, %lu edges, %d inputs\n", target->name, runs, edges, input_count);
    return 0;
}
