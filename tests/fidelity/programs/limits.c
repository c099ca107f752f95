/* Resource limits, scheduling, affinity, priorities, timer slack, personality, OOM score, umask, subreaper. */
#include "fidelity.h"

#include <sys/personality.h>
#include <sys/resource.h>

#define EXCEPT_ADVISED 2        /* PR_THP_DISABLE_EXCEPT_ADVISED, Linux 6.18 */

struct seen {
    struct rlimit limits[RLIM_NLIMITS];
    cpu_set_t affinity;
    char login[32];             /* of the audit subsystem, where the kernel has it */
    int nice, policy, io_priority, subreaper, thp, personality, oom;
    long slack;
    mode_t mask;
    char core[16];              /* what a core file holds; empty where the kernel writes none */
};

static void look(struct seen *seen)
{
    memset(seen, 0, sizeof *seen);
    for (int i = 0; i < RLIM_NLIMITS; i++)
        getrlimit((__rlimit_resource_t)i, &seen->limits[i]);
    sched_getaffinity(0, sizeof seen->affinity, &seen->affinity);
    seen->nice = getpriority(PRIO_PROCESS, 0);
    seen->policy = sched_getscheduler(0);
    seen->io_priority = (int)syscall(SYS_ioprio_get, 1, 0);
    prctl(PR_GET_CHILD_SUBREAPER, &seen->subreaper);
    seen->thp = prctl(PR_GET_THP_DISABLE, 0, 0, 0, 0);
    seen->personality = personality(0xffffffff);
    seen->slack = prctl(PR_GET_TIMERSLACK);
    seen->oom = atoi(fidelity_file("/proc/self/oom_score_adj"));
    if (access("/proc/self/loginuid", R_OK) == 0)
        snprintf(seen->login, sizeof seen->login, "%s", fidelity_file("/proc/self/loginuid"));
    if (access("/proc/self/coredump_filter", R_OK) == 0)
        snprintf(seen->core, sizeof seen->core, "%s", fidelity_file("/proc/self/coredump_filter"));
    seen->mask = umask(0);
    umask(seen->mask);
}

int main(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    MUST(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 123, limit.rlim_max - 1 }));
    MUST(setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 4096 }));
    MUST(setrlimit(RLIMIT_STACK, &(struct rlimit){ 4 << 20, 16 << 20 }));
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    MUST(sched_setaffinity(0, sizeof one, &one));
    MUST(sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 }));
    MUST(setpriority(PRIO_PROCESS, 0, 7));
    MUST((int)syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6));
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
    if (prctl(PR_SET_THP_DISABLE, 1, EXCEPT_ADVISED, 0, 0) < 0)
        MUST(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
    MUST(prctl(PR_SET_TIMERSLACK, 123456));
    MUST(personality(ADDR_NO_RANDOMIZE));
    int oom = MUST(open("/proc/self/oom_score_adj", O_WRONLY));
    MUST((int)write(oom, "500", 3));
    close(oom);
    int login = open("/proc/self/loginuid", O_WRONLY);
    CHECK(login < 0 || write(login, "1234", 4) == 4 || errno == EPERM, "cannot log in: %s", strerror(errno));   /* EPERM: somebody has */
    close(login);
    int core = open("/proc/self/coredump_filter", O_WRONLY);
    CHECK(core < 0 || write(core, "0x21", 4) == 4, "coredump_filter: %s", strerror(errno));
    close(core);
    umask(0137);
    struct seen before, after;
    look(&before);
    fidelity_ready();
    fidelity_await_go();
    look(&after);
    for (int i = 0; i < RLIM_NLIMITS; i++)
        CHECK(before.limits[i].rlim_cur == after.limits[i].rlim_cur && before.limits[i].rlim_max == after.limits[i].rlim_max,
              "limit %d: %lu/%lu became %lu/%lu", i, before.limits[i].rlim_cur, before.limits[i].rlim_max, after.limits[i].rlim_cur,
              after.limits[i].rlim_max);
    CHECK(CPU_EQUAL(&before.affinity, &after.affinity), "the affinity differs");
    CHECK(before.nice == after.nice && before.policy == after.policy, "nice %d policy %d became %d %d", before.nice, before.policy,
          after.nice, after.policy);
    CHECK(before.io_priority == after.io_priority, "I/O priority %x became %x", before.io_priority, after.io_priority);
    CHECK(before.subreaper == after.subreaper && before.thp == after.thp, "subreaper or THP setting differs");
    CHECK(before.slack == after.slack, "timer slack %ld became %ld", before.slack, after.slack);
    CHECK(before.personality == after.personality, "personality %x became %x", before.personality, after.personality);
    CHECK(before.oom == after.oom, "oom_score_adj %d became %d", before.oom, after.oom);
    CHECK(strcmp(before.login, after.login) == 0, "the login id %s became %s", before.login, after.login);
    CHECK(strcmp(before.core, after.core) == 0, "coredump_filter %s became %s", before.core, after.core);
    CHECK(before.mask == after.mask, "umask %o became %o", before.mask, after.mask);
    fidelity_pass();
}
