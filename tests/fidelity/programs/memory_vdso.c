/* The vdso and its data moved elsewhere by the program: the clock is read there, and a fork finds both. */
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

int main(void)
{
    find();
    CHECK(count >= 2, "%d mappings", count);
    unsigned long base = start[0], size = end[count - 1] - base;
    char *room = mmap(NULL, size + 64 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(room != MAP_FAILED, "mmap: %s", strerror(errno));
    MUST(munmap(room, size + 64 * PAGE));
    /* The libc's pointers into the old place are not used any more: only syscalls from here on. */
    for (int i = 0; i < count; i++) {
        unsigned long target = (unsigned long)room + 32 * PAGE + (start[i] - base);
        long moved = syscall(SYS_mremap, start[i], end[i] - start[i], end[i] - start[i], MREMAP_MAYMOVE | MREMAP_FIXED, target);
        if (moved < 0)
            _exit(60);
    }
    find();
    unsigned long before[8];
    memcpy(before, start, sizeof before);

    fidelity_ready();
    while (access(FIDELITY_DIRECTORY "go", F_OK) < 0)
        syscall(SYS_poll, NULL, 0, FIDELITY_POLL_MS);
    find();
    for (int i = 0; i < count; i++)
        CHECK(start[i] == before[i], "%s lies at %lx, before %lx", name[i], start[i], before[i]);
    CHECK(memcmp((char *)start[count - 1], "\177ELF", 4) == 0, "no vdso at its place");
    fidelity_pass();
}
