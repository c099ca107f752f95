/* Guard pages (MADV_GUARD_INSTALL): in anonymous memory, next to data, in a thread's stack; touching one is fatal, removing one gives a zero page. */
#include "memory.h"

#include <setjmp.h>
#include <signal.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

#define PAGES 512

static sigjmp_buf back;

static void on_fault(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

static bool faults(const volatile char *address)
{
    if (sigsetjmp(back, 1))
        return true;
    (void)*address;
    return false;
}

int main(void)
{
    char *area = apart(PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE), *small = apart(8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    memset(area, 'd', PAGES * PAGE);
    memset(small, 's', 8 * PAGE);
    if (madvise(small, PAGE, MADV_GUARD_INSTALL) < 0) {
        CHECK(errno == EINVAL, "guard: %s", strerror(errno));
        fidelity_ready();       /* a kernel older than 6.13 */
        fidelity_await_go();
        fidelity_pass();
    }
    for (int i = 3; i < PAGES; i += 16)
        MUST(madvise(area + (size_t)i * PAGE, (size_t)(i % 3 + 1) * PAGE, MADV_GUARD_INSTALL));
    MUST(madvise(small + 6 * PAGE, PAGE, MADV_GUARD_INSTALL));
    MUST(mprotect(small, 8 * PAGE, PROT_READ));
    struct expected expected[] = { expect_unchanged("big", area), expect_unchanged("small", small) };
    struct sigaction action = { .sa_handler = on_fault };
    MUST(sigaction(SIGSEGV, &action, NULL));

    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, 2);
    for (int i = 0; i < PAGES; i++) {
        bool guarded = (i % 16 >= 3 && i % 16 < 3 + (i - (i % 16 - 3)) % 3 + 1);
        CHECK(faults(area + (size_t)i * PAGE) == guarded, "page %d: guarded %d", i, guarded);
        CHECK(guarded || area[(size_t)i * PAGE + 9] == 'd', "page %d differs", i);
    }
    CHECK(faults(small) && !faults(small + PAGE) && faults(small + 6 * PAGE) && small[7 * PAGE] == 's', "small area");
    MUST(madvise(area + 3 * PAGE, PAGE, MADV_GUARD_REMOVE));
    CHECK(!faults(area + 3 * PAGE) && area[3 * PAGE] == 0, "a removed guard page reads %d", area[3 * PAGE]);
    fidelity_pass();
}
