/* Siblings that share memory of a parent which has ended: nobody alive has it but they; and a child of one of them. */
#include "memory.h"

#define SIZE (24UL << 20)
#define SIBLINGS 4

static char *area;
static pid_t ended;             /* the parent */

static uint64_t word(size_t page) { return page * 0x9e3779b97f4a7c15ul + 3; }

static void write_name(const char *format, int number, int value)
{
    char name[32], text[16];
    snprintf(name, sizeof name, format, number);
    snprintf(text, sizeof text, "%d", value);
    fidelity_write(name, text);
}

static bool is_there(const char *format, int number)
{
    char name[32], path[128];
    snprintf(name, sizeof name, format, number);
    snprintf(path, sizeof path, FIDELITY_DIRECTORY "memory_orphans.%s", name);
    return access(path, F_OK) == 0;
}

static int number_in(const char *format, int number)
{
    char name[32], path[128];
    snprintf(name, sizeof name, format, number);
    snprintf(path, sizeof path, FIDELITY_DIRECTORY "memory_orphans.%s", name);
    return atoi(fidelity_file(path));
}

static bool holds(int number)
{
    for (size_t page = 0; page < SIZE / PAGE; page++)
        if (*(uint64_t *)(area + page * PAGE) != (page == (size_t)number ? 0 : word(page)))
            return false;
    return true;
}

static void __attribute__((noreturn)) sibling(int number)
{
    while (number < SIBLINGS && getppid() == ended)
        fidelity_sleep_ms(10);
    *(uint64_t *)(area + (size_t)number * PAGE) = 0;
    if (number == 2 && fidelity_fork() == 0) {
        *(uint64_t *)(area + 2 * PAGE) = word(2);
        sibling(SIBLINGS);
    }
    write_name("pid%d", number, getpid());
    while (!is_there("measured%d", 0))
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    write_name("end%d", number, holds(number));
    _exit(0);
}

static long pss_of_all(void)
{
    long sum = 0;
    for (int i = 0; i <= SIBLINGS; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/smaps_rollup", number_in("pid%d", i));
        const char *line = strstr(fidelity_file(path), "\nPss:");
        CHECK(line, "sibling %d is gone", i);
        sum += atol(line + 5);
    }
    return sum;
}

int main(void)
{
    pid_t parent = fidelity_fork();
    if (parent == 0) {
        ended = getpid();
        area = apart(SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE);
        for (size_t page = 0; page < SIZE / PAGE; page++)
            *(uint64_t *)(area + page * PAGE) = word(page);
        for (int i = 0; i < SIBLINGS; i++)
            if (fidelity_fork() == 0)
                sibling(i);
        _exit(0);
    }
    fidelity_expect_exit(parent, 0);
    for (int i = 0; i <= SIBLINGS; i++)
        while (!is_there("pid%d", i) && access(FIDELITY_DIRECTORY "memory_orphans.result", F_OK) < 0)
            fidelity_sleep_ms(FIDELITY_POLL_MS);
    long before = pss_of_all();

    fidelity_ready();
    fidelity_await_go();
    long after = pss_of_all();
    write_name("measured%d", 0, 1);
    CHECK(after < before + before / 10, "the siblings hold %ld KiB, before the fork %ld", after, before);
    for (int i = 0; i <= SIBLINGS; i++) {
        for (int tries = 0; !is_there("end%d", i) && tries < 400; tries++)
            fidelity_sleep_ms(FIDELITY_POLL_MS);
        CHECK(is_there("end%d", i) && number_in("end%d", i) == 1, "what sibling %d has differs", i);
    }
    fidelity_pass();
}
