/* Areas that grow down (MAP_GROWSDOWN): what they hold, and that they still grow, down to the guard gap above the next mapping. */
#include "memory.h"

#include <setjmp.h>
#include <signal.h>

#define ROOM (2048 * PAGE)

static sigjmp_buf back;

static void on_fault(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

/* The handler needs a stack of its own: the fault must not be taken for one of the stack. */
static bool can_write(volatile char *address)
{
    if (sigsetjmp(back, 1))
        return false;
    *address = 'w';
    return true;
}

int main(void)
{
    /* A block at the bottom of a reservation; above it room, and at its top the area. */
    char *room = mmap(NULL, ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(mprotect(room, PAGE, PROT_READ));      /* there is no gap above what cannot be touched */
    MUST(munmap(room + PAGE, ROOM - PAGE));
    char *area = mmap(room + ROOM - 4 * PAGE, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_FIXED, -1, 0);
    CHECK(area != MAP_FAILED, "growsdown: %s", strerror(errno));
    strcpy(area, "bottom");
    for (int i = 1; i < 8; i++)
        area[-(long)PAGE * i] = (char)('0' + i);
    struct expected expected[] = { expect_unchanged("area", area) };
    CHECK(strstr(expected[0].before.flags, "gd") && expected[0].before.start == (uintptr_t)area - 7 * PAGE, "it did not grow in the source");
    struct sigaction action = { .sa_handler = on_fault };
    MUST(sigaction(SIGSEGV, &action, NULL));
    MUST(sigaction(SIGBUS, &action, NULL));

    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, 1);
    CHECK(strcmp(area, "bottom") == 0, "content");
    for (int i = 1; i < 8; i++)
        CHECK(area[-(long)PAGE * i] == '0' + i, "page %d below", i);
    for (int i = 8; i < 16; i++)
        CHECK(can_write(area - (long)PAGE * i), "it does not grow any more");
    CHECK(mapping_at(area).start == (uintptr_t)area - 15 * PAGE, "it did not grow by 8 pages");
    CHECK(!can_write(room + 2 * PAGE), "it grew into the guard gap");
    fidelity_pass();
}
