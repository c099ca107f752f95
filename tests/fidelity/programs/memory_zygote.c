/*
 * A zygote: memory that children inherited and did not write is there once, however many they are. Children that changed, dropped, unmapped or
 * protected parts; a grandchild.
 */
#include "memory.h"

#define SIZE (48UL << 20)
#define CHILDREN 12

static char *inherited;
static pid_t children[CHILDREN];

static uint64_t word(size_t page) { return page * 0x9e3779b97f4a7c15ul + 1; }

/* What child `number` makes of it. Each differs in its own pages, so that nothing but the rest can be shared. */
static void change(int number)
{
    char *mine = inherited + (size_t)number * 64 * PAGE;
    mine[7] = (char)number;
    MUST(madvise(mine + 8 * PAGE, 8 * PAGE, MADV_DONTNEED));
    MUST(mprotect(mine + 16 * PAGE, 4 * PAGE, PROT_READ));
    if (number % 4 == 1)
        MUST(munmap(inherited + SIZE - 64 * PAGE, 64 * PAGE));
    if (number % 4 == 2)
        MUST(madvise(inherited + SIZE - 64 * PAGE, 64 * PAGE, MADV_DONTFORK));
}

static int differs(int number)
{
    size_t pages = SIZE / PAGE - (number % 4 == 1 ? 64 : 0);
    for (size_t page = 0; page < pages; page++) {
        size_t own = page - (size_t)number * 64;
        uint64_t expected = own >= 8 && own < 16 ? 0 : word(page);
        if (*(uint64_t *)(inherited + page * PAGE + 64) != expected)
            return (int)page + 1;
    }
    return inherited[(size_t)number * 64 * PAGE + 7] != number;
}

static void __attribute__((noreturn)) child(int number)
{
    change(number);
    pid_t grandchild = number == 3 ? fidelity_fork() : -1;
    if (grandchild == 0)
        inherited[5 * PAGE] = 'g';
    char name[16];
    snprintf(name, sizeof name, "child%d%s", number, grandchild == 0 ? "g" : "");
    fidelity_write(name, "ready");
    while (access(FIDELITY_DIRECTORY "memory_zygote.measured", F_OK) < 0)      /* the parent looks first */
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    int page = differs(number);
    if (page)
        fidelity_fail("child %d: page %d differs", number, page - 1);
    if (grandchild == 0 && inherited[5 * PAGE] != 'g')
        fidelity_fail("the grandchild's page differs");
    /* What is written stays with the writer. */
    char *page_of_all = inherited + 3000 * PAGE + (size_t)number * 8;
    for (int i = 0; i < 8; i++)
        page_of_all[i] = (char)number;
    for (int i = 0; i < CHILDREN * 8; i++)
        if (inherited[3000 * PAGE + i] != (i / 8 == number ? number : i >= 64 && i < 72 ? ((char *)&(uint64_t){ word(3000) })[i - 64] : 0))
            fidelity_fail("child %d: byte %d of the page that all write", number, i);
    if (grandchild > 0)
        fidelity_expect_exit(grandchild, 0);
    _exit(0);
}

static long pss_of(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    const char *line = strstr(fidelity_file(path), "\nPss:");
    return line ? atol(line + 5) : -1;
}

static long pss_of_all(void)
{
    long sum = pss_of(getpid());
    for (int i = 0; i < CHILDREN; i++)
        sum += pss_of(children[i]);
    return sum;
}

static bool all_ready(void)
{
    char path[64];
    for (int i = 0; i <= CHILDREN; i++) {
        snprintf(path, sizeof path, FIDELITY_DIRECTORY "memory_zygote.child%d%s", i < CHILDREN ? i : 3, i < CHILDREN ? "" : "g");
        if (access(path, F_OK) < 0)
            return false;
    }
    return true;
}

int main(void)
{
    inherited = apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
    for (size_t page = 0; page < SIZE / PAGE; page++)
        *(uint64_t *)(inherited + page * PAGE + 64) = word(page);
    for (int i = 0; i < CHILDREN; i++)
        if ((children[i] = fidelity_fork()) == 0)
            child(i);
    while (!all_ready() && access(FIDELITY_DIRECTORY "memory_zygote.result", F_OK) < 0)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    long before = pss_of_all();
    fidelity_ready();
    fidelity_await_go();
    long after = pss_of_all();
    fidelity_write("measured", "measured");
    CHECK(after < before + before / 10, "the family holds %ld KiB, before the fork %ld", after, before);
    for (int i = 0; i < CHILDREN; i++)
        fidelity_expect_exit(children[i], 0);
    CHECK(inherited[7] == 0 && *(uint64_t *)(inherited + 9 * PAGE + 64) == word(9), "the parent sees what a child did");
    CHECK(*(uint64_t *)(inherited + 3000 * PAGE + 64) == word(3000), "the parent's page differs");
    fidelity_pass();
}
