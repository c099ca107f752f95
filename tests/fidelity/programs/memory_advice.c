/* Advice: DONTFORK, WIPEONFORK, DONTDUMP, MERGEABLE, huge pages, access order, reservation; and what it does when the program forks. */
#include "memory.h"

#include <sys/prctl.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif
#ifndef PR_SET_MEMORY_MERGE
#define PR_SET_MEMORY_MERGE 67
#define PR_GET_MEMORY_MERGE 68
#endif

#define SIZE (64 * PAGE)

static char *advised(int advice)
{
    char *area = apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    memset(area, 'a', SIZE / 2);
    MUST(madvise(area, SIZE, advice));
    return area;
}

static char *with_protection(int protection)
{
    char *area = apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    memset(area, 'p', SIZE / 2);
    MUST(mprotect(area, SIZE, protection));
    return area;
}

static void check_child(char *wiped, char *kept)
{
    pid_t child = fidelity_fork();
    if (child == 0)
        _exit(wiped[0] == 0 && kept[0] == 'a' ? 0 : 1);
    fidelity_expect_exit(child, 0);
}

/* A second process: its mappings are mergeable by default, one is not; huge pages are off. */
static void __attribute__((noreturn)) merging_process(void)
{
    MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    bool merging = prctl(PR_SET_MEMORY_MERGE, 1, 0, 0, 0) == 0;
    char *merged = apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE), *apart_from = apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    merged[0] = apart_from[0] = 'm';
    if (merging)
        MUST(madvise(apart_from, SIZE, MADV_UNMERGEABLE));
    struct expected expected[] = { expect_unchanged("merged", merged), expect_unchanged("not merged", apart_from) };
    CHECK(!merging || (strstr(expected[0].before.flags, "mg") && !strstr(expected[1].before.flags, "mg")), "advice has no effect here");
    fidelity_write("merging", "ready");
    fidelity_await_go();
    check_unchanged(expected, 2);
    CHECK(prctl(PR_GET_MEMORY_MERGE, 0, 0, 0, 0) == merging && prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1, "merging or huge pages");
    _exit(0);
}

int main(void)
{
    pid_t child = fidelity_fork();
    if (child == 0)
        merging_process();
    char *wiped = advised(MADV_WIPEONFORK), *kept = apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE), *unforked = advised(MADV_DONTFORK);
    memset(kept, 'a', SIZE);
    struct expected expected[] = {
        expect_unchanged("MADV_DONTFORK", unforked),
        expect_unchanged("MADV_WIPEONFORK", wiped),
        expect_unchanged("MADV_DONTDUMP", advised(MADV_DONTDUMP)),
        expect_unchanged("MADV_MERGEABLE", advised(MADV_MERGEABLE)),
        expect_unchanged("MADV_HUGEPAGE", advised(MADV_HUGEPAGE)),
        expect_unchanged("MADV_NOHUGEPAGE", advised(MADV_NOHUGEPAGE)),
        expect_unchanged("MADV_RANDOM", advised(MADV_RANDOM)),
        expect_unchanged("MADV_SEQUENTIAL", advised(MADV_SEQUENTIAL)),
        expect_unchanged("none", kept),
        expect_unchanged("no reserve", apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE)),
        expect_unchanged("never writable", apart(SIZE, PROT_READ, MAP_PRIVATE)),
        expect_unchanged("read-only now", with_protection(PROT_READ)),
        expect_unchanged("hidden now", with_protection(PROT_NONE)),
        expect_unchanged("executable now", with_protection(PROT_READ | PROT_EXEC)),
        expect_unchanged("a library's data", (char *)((uintptr_t)stdout & ~(PAGE - 1))),
        expect_unchanged("the stack", (char *)&child),
    };
    while (access(FIDELITY_DIRECTORY "memory_advice.merging", F_OK) < 0 && access(FIDELITY_DIRECTORY "memory_advice.result", F_OK) < 0)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < 8; i++)
        CHECK(expected[i].area[0] == 'a' && expected[i].area[SIZE / 2 - 1] == 'a' && expected[i].area[SIZE / 2] == 0, "%s: content", expected[i].what);
    CHECK(expected[11].area[0] == 'p' && expected[13].area[SIZE / 2 - 1] == 'p', "content of what was made read-only");
    check_child(wiped, kept);
    fidelity_expect_exit(child, 0);
    fidelity_pass();
}
