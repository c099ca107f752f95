/* mlock, mlock on fault, and mlockall for what is mapped later; a limit that is lower than what is locked already. */
#include "memory.h"

#include <sys/resource.h>

#define SIZE (32 * PAGE)

static char *area(void) { return apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE); }

/* Everything this process maps from now on is locked when it is touched. */
static void __attribute__((noreturn)) locking_process(void)
{
    MUST(mlockall(MCL_FUTURE | MCL_ONFAULT));
    fidelity_write("locking", "ready");
    fidelity_await_go();
    char *later = area();
    CHECK(mapping_has(later, "lo") && mapping_has(later, "lf"), "a new mapping is not locked on fault: %s", mapping_at(later).flags);
    MUST(munlockall());
    CHECK(!mapping_has(area(), "lo"), "still locked after munlockall");
    _exit(0);
}

int main(void)
{
    pid_t child = fidelity_fork();
    if (child == 0)
        locking_process();
    char *locked = area(), *on_fault = area(), *hidden = area(), *unlocked = area(), *readonly = area();
    memset(locked, 'l', SIZE);
    MUST(mlock(locked, SIZE));
    MUST(mlock2(on_fault, SIZE, MLOCK_ONFAULT));
    on_fault[0] = 'f';
    memset(hidden, 'h', SIZE);
    MUST(mlock(hidden, SIZE));
    MUST(mprotect(hidden, SIZE, PROT_NONE));
    memset(readonly, 'r', SIZE);
    MUST(mlock(readonly, SIZE));
    MUST(mprotect(readonly, SIZE, PROT_READ));
    struct rlimit limit = { 4 * PAGE, 64 << 10 };
    MUST(setrlimit(RLIMIT_MEMLOCK, &limit));
    struct expected expected[] = { expect_unchanged("locked", locked), expect_unchanged("on fault", on_fault), expect_unchanged("hidden", hidden),
                                   expect_unchanged("not locked", unlocked), expect_unchanged("read-only", readonly) };
    CHECK(strstr(expected[0].before.flags, "lo") && strstr(expected[1].before.flags, "lf"), "not locked in the source");
    while (access(FIDELITY_DIRECTORY "memory_locked.locking", F_OK) < 0)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, 5);
    CHECK(locked[SIZE - 1] == 'l' && on_fault[0] == 'f' && on_fault[PAGE] == 0 && readonly[0] == 'r', "content");
    CHECK(mapping_at(locked).locked == (long)(SIZE >> 10), "%ld KiB are locked", mapping_at(locked).locked);
    MUST(getrlimit(RLIMIT_MEMLOCK, &limit));
    CHECK(limit.rlim_cur == 4 * PAGE && limit.rlim_max == 64 << 10, "the limit differs");
    MUST(munlock(locked, SIZE));
    CHECK(!mapping_has(locked, "lo"), "munlock has no effect");
    fidelity_expect_exit(child, 0);
    fidelity_pass();
}
