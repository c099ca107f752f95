/* The vdso is at its place and works: a loop of clock_gettime across the fork never goes back, and a clock read costs no system call. */
#include "fidelity.h"

#include <sys/auxv.h>
#include <sys/resource.h>

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
    setpriority(PRIO_PROCESS, 0, 19);       /* it spins, and many programs share the machine */
    fidelity_ready();
    time_t end = last.tv_sec + FIDELITY_SPIN_SECONDS;
    for (unsigned long rounds = 0; rounds % 100000 || (last.tv_sec < end && !fidelity_may_go()); rounds++) {
        clock_gettime(CLOCK_MONOTONIC, &now);
        CHECK(now.tv_sec > last.tv_sec || (now.tv_sec == last.tv_sec && now.tv_nsec >= last.tv_nsec), "the clock went back");
        last = now;
        unsigned cpu;
        CHECK(getcpu(&cpu, NULL) == 0, "getcpu: %s", strerror(errno));
    }
    fidelity_await_go();
    vdso_line(after, sizeof after);
    CHECK(strcmp(before, after) == 0, "the vdso moved from %s to %s", before, after);
    CHECK(getauxval(AT_SYSINFO_EHDR) == strtoul(after, NULL, 16), "the auxiliary vector names another vdso");
    double start = fidelity_now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < 200000; i++)
        clock_gettime(CLOCK_MONOTONIC, &now);
    double middle = fidelity_now(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < 200000; i++)
        syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    double by_syscall = fidelity_now(CLOCK_PROCESS_CPUTIME_ID) - middle;
    CHECK(middle - start < by_syscall * 0.8, "200000 reads: %.3f s by vdso, %.3f s by system call", middle - start, by_syscall);
    fidelity_pass();
}
