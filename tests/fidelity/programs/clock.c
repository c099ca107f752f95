/* The vdso is at its place and works: a loop of clock_gettime across the fork never goes back, and a clock read costs no system call. */
#include "fidelity.h"

#include <sys/auxv.h>

static void vdso_line(char *line, size_t size)
{
    char *at = strstr(fidelity_file("/proc/self/maps"), "[vdso]");
    CHECK(at, "there is no vdso");
    char *start = at;
    while (start[-1] != '\n')
        start--;
    snprintf(line, size, "%.*s", 25, start);
}

int main(void)
{
    char before[32], after[32];
    vdso_line(before, sizeof before);
    struct timespec last, now;
    clock_gettime(CLOCK_MONOTONIC, &last);
    fidelity_ready();
    for (unsigned long rounds = 0; rounds % 100000 || !fidelity_may_go(); rounds++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        CHECK(now.tv_sec > last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec >= last.tv_nsec), "the clock went back");
        last = now;
        unsigned cpu;
        CHECK(getcpu(&cpu, NULL) == 0, "getcpu: %s", strerror(errno));
    }
    vdso_line(after, sizeof after);
    CHECK(strcmp(before, after) == 0, "the vdso moved from %s to %s", before, after);
    CHECK(getauxval(AT_SYSINFO_EHDR) == strtoul(after, NULL, 16), "the auxiliary vector names another vdso");
    double start = fidelity_now(CLOCK_PROCESS_CPUTIME_ID), end;
    for (int i = 0; i < 200000; i++)
        clock_gettime(CLOCK_MONOTONIC, &now);
    end = fidelity_now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < 200000; i++)
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    double by_syscall = fidelity_now(CLOCK_PROCESS_CPUTIME_ID) - end;
    CHECK(end - start < by_syscall * 0.8, "200000 reads: %.3f s by vdso, %.3f s by system call", end - start, by_syscall);
    fidelity_pass();
}
