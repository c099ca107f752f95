/* Reservations of address space as language runtimes make them: hundreds of GiB, mostly PROT_NONE, with islands in use. */
#include "memory.h"

#define RESERVE (512UL << 30)
#define ISLANDS 64
#define ISLAND (16 * PAGE)

int main(void)
{
    char *none = mmap(NULL, RESERVE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(none != MAP_FAILED, "cannot reserve %lu GiB: %s", RESERVE >> 30, strerror(errno));
    char *accounted = mmap(NULL, RESERVE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(accounted != MAP_FAILED, "cannot map %lu GiB without access: %s", RESERVE >> 30, strerror(errno));
    for (size_t i = 0; i < ISLANDS; i++) {
        char *island = none + i * (RESERVE / ISLANDS) + ISLAND;
        MUST(mprotect(island, ISLAND, PROT_READ | PROT_WRITE));
        memset(island, (int)i + 1, ISLAND / 2);
    }
    char *writable = mmap(NULL, RESERVE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(writable != MAP_FAILED, "cannot map %lu GiB writable: %s", RESERVE >> 30, strerror(errno));
    writable[RESERVE - 1] = writable[RESERVE / 2] = 'w';
    struct expected expected[] = { expect_unchanged("reserved", none), expect_unchanged("accounted", accounted),
                                   expect_unchanged("island", none + RESERVE / ISLANDS + ISLAND), expect_unchanged("writable", writable) };

    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, 4);
    for (size_t i = 0; i < ISLANDS; i++) {
        char *island = none + i * (RESERVE / ISLANDS) + ISLAND;
        CHECK(island[0] == (char)(i + 1) && island[ISLAND / 2 - 1] == (char)(i + 1) && island[ISLAND / 2] == 0, "island %zu differs", i);
    }
    CHECK(writable[RESERVE - 1] == 'w' && writable[RESERVE / 2] == 'w' && writable[0] == 0, "the writable one differs");
    MUST(mprotect(accounted, ISLAND, PROT_READ | PROT_WRITE));
    accounted[0] = 1;
    fidelity_pass();
}
