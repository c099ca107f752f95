/*
 * Two relatives with pages in thousands of pieces, and a stack of which the two ends are used, megabytes apart: the kernel tells the pieces in several turns,
 * and those of the last mapping twice.
 */
#include "fidelity.h"

#define PIECES 1300             /* the kernel tells 511 at a time */
#define PAGE 4096ul
#define DEPTH (5ul << 20)       /* below the stack's used part; the limit is 8 MiB */

static unsigned char *pieces;

static void fill(unsigned char seed)
{
    for (unsigned i = 0; i < PIECES; i++)
        pieces[2 * i * PAGE] = (unsigned char)(i + seed);
}

static void check(unsigned char seed, const unsigned char *deep, const char *who)
{
    for (unsigned i = 0; i < PIECES; i++) {
        CHECK(pieces[2 * i * PAGE] == (unsigned char)(i + seed), "%s: page %u has %u", who, i, pieces[2 * i * PAGE]);
        CHECK(pieces[(2 * i + 1) * PAGE] == 0, "%s: the hole behind page %u is filled", who, i);
    }
    CHECK(*deep == 200 + seed, "%s: the lower end of the stack has %u", who, *deep);
}

int main(void)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    pieces = MUST(mmap(NULL, 2 * PIECES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    MUST(madvise(pieces, 2 * PIECES * PAGE, MADV_NOHUGEPAGE));
    volatile unsigned char *deep = (unsigned char *)__builtin_frame_address(0) - DEPTH;
    *deep = 200;
    fill(0);
    pid_t child = fidelity_fork();
    if (child == 0) {
        *deep = 201;
        fill(1);
        fidelity_await_go();
        check(1, (const unsigned char *)deep, "the child");
        _exit(0);
    }
    fidelity_sleep_ms(100);
    fidelity_ready();
    fidelity_await_go();
    check(0, (const unsigned char *)deep, "the parent");
    fidelity_expect_exit(child, 0);
    fidelity_pass();
}
