/* Private anonymous memory: patterns, holes, protections, a huge sparse mapping; what one side writes the other never sees. */
#include "fidelity.h"

#define SIZE (8UL << 20)
#define HUGE (64UL << 30)

static uint64_t pattern(size_t i) { return i * 0x9e3779b97f4a7c15ul ^ 0x5bd1e995; }

static void check_protection(const void *address, const char *expected)
{
    char *maps = fidelity_file("/proc/self/maps");
    for (char *line = strtok(maps, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long start, end;
        char permissions[5];
        if (sscanf(line, "%lx-%lx %4s", &start, &end, permissions) == 3 && start <= (uintptr_t)address && (uintptr_t)address < end) {
            CHECK(strcmp(permissions, expected) == 0, "protection %s, expected %s", permissions, expected);
            return;
        }
    }
    fidelity_fail("no mapping at %p", address);
}

int main(void)
{
    uint64_t *words = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t i = 0; i < SIZE / 16; i++)
        words[i] = pattern(i);
    char *sparse = mmap(NULL, HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(sparse != MAP_FAILED, "huge mapping: %s", strerror(errno));
    for (size_t at = 0; at < HUGE; at += HUGE / 8)
        sparse[at + 123] = (char)(at >> 33) + 1;
    char *reserved = mmap(NULL, HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(reserved != MAP_FAILED, "reserved mapping: %s", strerror(errno));
    char *sealed = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    strcpy(sealed, "written, then made read-only");
    strcpy(sealed + 4096, "written, then hidden");
    mprotect(sealed, 4096, PROT_READ);
    mprotect(sealed + 4096, 4096, PROT_NONE);
    char *discarded = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(discarded, 7, 8192);

    fidelity_ready();
    fidelity_await_go();

    for (size_t i = 0; i < SIZE / 16; i++)
        CHECK(words[i] == pattern(i), "word %zu differs", i);
    for (size_t i = SIZE / 16; i < SIZE / 8; i++)
        CHECK(words[i] == 0, "untouched word %zu is not zero", i);
    for (size_t at = 0; at < HUGE; at += HUGE / 8) {
        CHECK(sparse[at + 123] == (char)(at >> 33) + 1, "sparse byte at %zx differs", at);
        CHECK(sparse[at + 4096] == 0, "hole after %zx is not zero", at);
    }
    check_protection(reserved, "---p");
    check_protection(sealed, "r--p");
    check_protection(sealed + 4096, "---p");
    CHECK(strcmp(sealed, "written, then made read-only") == 0, "read-only page differs");
    MUST(mprotect(sealed + 4096, 4096, PROT_READ | PROT_WRITE));
    CHECK(strcmp(sealed + 4096, "written, then hidden") == 0, "hidden page differs");
    madvise(discarded, 4096, MADV_DONTNEED);
    CHECK(discarded[0] == 0 && discarded[4096] == 7, "a discarded page must read zero");
    memset(words, fidelity_in_branch() ? 0xbb : 0x55, SIZE);
    fidelity_sleep_ms(30);
    CHECK(((unsigned char *)words)[SIZE / 2] == (fidelity_in_branch() ? 0xbb : 0x55), "the other side wrote here");
    fidelity_pass();
}
