/*
 * Many processes without a single descriptor, side by side: what one of them opens for a moment while a branch is made must not be left with another.
 * Each has memory that nobody has touched yet, and touches it afterwards.
 */
#include "fidelity.h"

#include <dirent.h>

#define PROCESSES 24
#define AREAS 8
#define PAGE 4096ul
#define AREA (128 * PAGE)         /* large enough to be filled whole pages at a time (memory_batch.c) */

static int *ready;

/* Descriptors but that of the listing itself. */
static int count_descriptors(void)
{
    int count = 0;
    DIR *listing = opendir("/proc/self/fd");
    if (!listing)
        return -1;
    for (struct dirent *entry; (entry = readdir(listing));)
        count += entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(listing);
    closedir(listing);
    return count;
}

static void __attribute__((noreturn)) live(void)
{
    char *areas[AREAS];
    for (int i = 0; i < AREAS; i++) {
        areas[i] = mmap(NULL, AREA, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (areas[i] == MAP_FAILED)
            _exit(1);
        for (unsigned long page = 0; page < AREA / PAGE; page += 2)
            areas[i][page * PAGE] = 'x';
        mprotect(areas[i] + AREA - PAGE, PAGE, PROT_READ);      /* keeps it apart from the next */
    }
    if (syscall(SYS_close_range, 0, ~0u, 0) < 0)
        _exit(2);
    __atomic_add_fetch(ready, 1, __ATOMIC_SEQ_CST);
    fidelity_await_go();
    if (count_descriptors() != 0)
        _exit(3);
    for (int i = 0; i < AREAS; i++)
        for (unsigned long page = 0; page < AREA / PAGE - 1; page++) {
            if (areas[i][page * PAGE] != (page % 2 ? 0 : 'x'))
                _exit(4);
            areas[i][page * PAGE] = 'y';
        }
    _exit(0);
}

int main(void)
{
    pid_t children[PROCESSES];
    ready = MUST(mmap(NULL, sizeof *ready, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    for (int i = 0; i < PROCESSES; i++)
        if ((children[i] = fidelity_fork()) == 0)
            live();
    while (__atomic_load_n(ready, __ATOMIC_SEQ_CST) < PROCESSES)
        fidelity_sleep_ms(5);

    fidelity_ready();
    fidelity_await_go();
    for (int i = 0; i < PROCESSES; i++)
        fidelity_expect_exit(children[i], 0);
    fidelity_pass();
}
