/* The vdso and its data moved by the program: in one process as a whole, in another apart and in another order, one of them unmapped. */
#include "memory.h"

#include <sys/auxv.h>

static unsigned long start[8], end[8];
static char name[8][24];
static int count;

/* [vvar], [vvar_vclock], [vdso], in order. */
static void find(void)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    for (count = 0; count < 8 && fgets(line, sizeof line, maps);) {
        char *found = strstr(line, "[v");
        if (!found || strncmp(found, "[vsyscall]", 10) == 0)
            continue;
        sscanf(line, "%lx-%lx", &start[count], &end[count]);
        snprintf(name[count++], sizeof name[0], "%.20s", strtok(found, "\n"));
    }
    fclose(maps);
}

static void move(int piece, unsigned long target)
{
    long moved = syscall(SYS_mremap, start[piece], end[piece] - start[piece], end[piece] - start[piece], MREMAP_MAYMOVE | MREMAP_FIXED, target);
    if (moved != (long)target)
        _exit(60);
}

static char *room_for(unsigned long size)
{
    char *room = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED, "mmap: %s", strerror(errno));
    MUST(munmap(room, size));
    return room;
}

/* From now on no function of the libc may be called that reads a clock: it knows the old place. */
static void wait_for_go(void)
{
    while (access(FIDELITY_DIRECTORY "go", F_OK) < 0)
        syscall(SYS_poll, NULL, 0, FIDELITY_POLL_MS);
}

static int check_places(const unsigned long *before, int pieces)
{
    find();
    if (count != pieces)
        return 70;
    for (int i = 0; i < count; i++)
        if (start[i] != before[i])
            return 71 + i;
    for (int i = 0; i < count; i++)
        if (strcmp(name[i], "[vdso]") == 0 && memcmp((char *)start[i], "\177ELF", 4) == 0)
            return 0;
    return 80;
}

static void __attribute__((noreturn)) apart_process(void)
{
    char *room = room_for(512 * PAGE);
    int pieces = count;
    for (int i = 0; i < pieces; i++)
        if (i == 1 && pieces > 2)
            MUST(munmap((void *)start[i], end[i] - start[i]));
        else
            move(i, (unsigned long)room + (unsigned long)(pieces - i) * 64 * PAGE);
    find();
    unsigned long before[8];
    int left = count;
    memcpy(before, start, sizeof before);
    fidelity_write("apart", "ready");
    wait_for_go();
    _exit(check_places(before, left));
}

int main(void)
{
    find();
    CHECK(count >= 2, "%d mappings", count);
    pid_t child = fidelity_fork();
    if (child == 0)
        apart_process();
    unsigned long base = start[0], size = end[count - 1] - base;
    char *room = room_for(size + 64 * PAGE);
    for (int i = 0; i < count; i++)
        move(i, (unsigned long)room + 32 * PAGE + (start[i] - base));
    find();
    unsigned long before[8];
    int pieces = count;
    memcpy(before, start, sizeof before);
    while (access(FIDELITY_DIRECTORY "memory_vdso.apart", F_OK) < 0)
        syscall(SYS_poll, NULL, 0, FIDELITY_POLL_MS);

    fidelity_ready();
    wait_for_go();
    int status = check_places(before, pieces);
    CHECK(status == 0, "moved as a whole: %d", status);
    fidelity_expect_exit(child, 0);
    fidelity_pass();
}
