/* Switches of a thread and its process that a fork has to set again: time stamp counter, speculation, machine checks, membarrier, scheduling details, memory policy. */
#include "fidelity.h"

#include <linux/membarrier.h>
#include <linux/mempolicy.h>
#include <pthread.h>

/* The kernel's struct for sched_setattr, second version. */
struct attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
    uint32_t clamp_least, clamp_most;
};

#define RESET_ON_FORK 1
#define NODES 1024

struct seen {
    int tsc, machine_checks;
    long store_bypass, branch;
    struct attributes scheduling;
    long slack;
    char io_priority;
    int memory_policy;          /* -1 = the kernel has none */
    unsigned long nodes[NODES / 64];
};

static struct seen thread_before, thread_after;
static pthread_barrier_t set;

static struct seen look(void)
{
    struct seen seen;
    memset(&seen, 0, sizeof seen);
    MUST(prctl(PR_GET_TSC, &seen.tsc));
    seen.machine_checks = prctl(PR_MCE_KILL_GET, 0, 0, 0, 0);
    seen.store_bypass = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, 0, 0, 0);
    seen.branch = prctl(PR_GET_SPECULATION_CTRL, PR_SPEC_INDIRECT_BRANCH, 0, 0, 0);
    MUST((int)syscall(SYS_sched_getattr, 0, &seen.scheduling, sizeof seen.scheduling, 0));
    seen.slack = prctl(PR_GET_TIMERSLACK);
    seen.io_priority = (char)syscall(SYS_ioprio_get, 1, 0);
    if (syscall(SYS_get_mempolicy, &seen.memory_policy, seen.nodes, NODES + 1, NULL, 0) < 0)
        seen.memory_policy = -1;
    return seen;
}

/* From the first node alone, as numactl does it. */
static void set_memory_policy(int policy)
{
    unsigned long nodes = 1;
    CHECK(syscall(SYS_set_mempolicy, policy, &nodes, 64) == 0 || errno == ENOSYS, "set_mempolicy: %s", strerror(errno));
}

static void *other(void *unused)
{
    (void)unused;
    struct sched_param none = { 0 };
    MUST(sched_setscheduler(0, SCHED_IDLE, &none));
    prctl(PR_SET_SPECULATION_CTRL, PR_SPEC_STORE_BYPASS, PR_SPEC_DISABLE, 0, 0);
    MUST(prctl(PR_MCE_KILL, PR_MCE_KILL_SET, PR_MCE_KILL_EARLY, 0, 0));
    MUST(prctl(PR_SET_TIMERSLACK, 123456));
    MUST((int)syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6));
    set_memory_policy(MPOL_INTERLEAVE);
    thread_before = look();
    pthread_barrier_wait(&set);
    fidelity_await_go();
    thread_after = look();
    return NULL;
}

int main(void)
{
    pthread_barrier_init(&set, NULL, 2);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, other, NULL) == 0, "no thread");
    struct sched_param none = { 0 };
    MUST(sched_setscheduler(0, SCHED_BATCH | SCHED_RESET_ON_FORK, &none));
    MUST((int)syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0));
    MUST((int)syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0));
    MUST(prctl(PR_SET_TSC, PR_TSC_SIGSEGV));
    set_memory_policy(MPOL_BIND | MPOL_F_STATIC_NODES);
    struct seen before = look();
    pthread_barrier_wait(&set);
    fidelity_ready();
    fidelity_sleep_ms(1);
    while (!fidelity_may_go())
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    struct seen after = look();
    MUST(prctl(PR_SET_TSC, PR_TSC_ENABLE));
    pthread_join(thread, NULL);
    CHECK(before.tsc == PR_TSC_SIGSEGV && after.tsc == before.tsc, "the time stamp counter: %d became %d", before.tsc, after.tsc);
    CHECK(thread_after.machine_checks == PR_MCE_KILL_EARLY, "machine checks: %d", thread_after.machine_checks);
    CHECK((after.scheduling.flags & RESET_ON_FORK) && after.scheduling.policy == SCHED_BATCH, "policy %u flags %lx", after.scheduling.policy,
          after.scheduling.flags);
    CHECK(thread_after.scheduling.policy == SCHED_IDLE, "the thread's policy is %u", thread_after.scheduling.policy);
    CHECK(after.memory_policy == before.memory_policy && after.nodes[0] == before.nodes[0] && before.memory_policy != MPOL_DEFAULT, "memory policy %#x of %lx",
          after.memory_policy, after.nodes[0]);
    CHECK(memcmp(&before, &after, sizeof before) == 0, "the first thread's switches differ");
    CHECK(memcmp(&thread_before, &thread_after, sizeof before) == 0, "the other thread's switches differ");
    CHECK(syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0, "the registration for membarrier is lost: %s", strerror(errno));
    long registered = syscall(SYS_membarrier, 1 << 9, 0, 0);
    CHECK(registered < 0 || (registered & MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED), "registered for %lx", registered);
    fidelity_pass();
}
