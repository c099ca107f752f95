/*
 * Switches of a thread that nothing else reads back: time stamp counter and cpuid denied, speculation, machine checks, the I/O flusher's
 * privilege, where its memory comes from (NUMA); and the process's membarrier registrations and leave to use AMX tiles. Each costs one question, and a
 * row in a branch only when it is set.
 */
#include "parts.h"

#include <linux/membarrier.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#ifndef ARCH_GET_CPUID
#define ARCH_GET_CPUID 0x1011
#define ARCH_SET_CPUID 0x1012
#endif
#ifndef ARCH_GET_XCOMP_PERM
#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_REQ_XCOMP_PERM 0x1023
#endif
#ifndef PR_SPEC_L1D_FLUSH
#define PR_SPEC_L1D_FLUSH 2
#endif
#define MEMBARRIER_ASK_REGISTRATIONS (1 << 9)   /* MEMBARRIER_CMD_GET_REGISTRATIONS, Linux 6.3 */
#define SPECULATIONS 3
#define TSC_DENIED PR_TSC_SIGSEGV
#define MACHINE_CHECK_DEFAULT PR_MCE_KILL_DEFAULT
#define TILES 18                /* XFEATURE_XTILE_DATA: the one feature that a program has to ask for */
#define NODES 1024              /* the most that any kernel is built for */
#define NODES_ARGUMENT (NODES + 1)      /* the kernel takes one off */
#define NODE_BYTES (NODES / 8)

static const int speculations[SPECULATIONS] = { PR_SPEC_STORE_BYPASS, PR_SPEC_INDIRECT_BRANCH, PR_SPEC_L1D_FLUSH };

struct switches_memo {
    int cpuid_op, machine_check_op, flusher_op, membarrier_op, memory_op;
    int speculation_op[SPECULATIONS];
    uint64_t tsc, memory_policy, nodes, permitted;
};

struct switches {
    bool tsc_denied, cpuid_denied, flushes_io, uses_tiles;
    int machine_check;
    uint64_t membarrier;            /* commands registered for; of the process */
    uint64_t speculation[SPECULATIONS];     /* 0 = nothing was asked for */
    int memory_policy;              /* MPOL_* with its flags; 0 = the default */
    unsigned char nodes[NODE_BYTES];
};

static int switches_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    struct switches_memo *mine = *memo = must_alloc(sizeof *mine);
    mine->tsc = query_reserve(query, sizeof(int));
    ASK(query, SYS_prctl, PR_GET_TSC, mine->tsc);
    mine->cpuid_op = ASK(query, SYS_arch_prctl, ARCH_GET_CPUID, 0);
    mine->machine_check_op = ASK(query, SYS_prctl, PR_MCE_KILL_GET);
    mine->flusher_op = ASK(query, SYS_prctl, PR_GET_IO_FLUSHER);
    for (int i = 0; i < SPECULATIONS; i++)
        mine->speculation_op[i] = ASK(query, SYS_prctl, PR_GET_SPECULATION_CTRL, (uint64_t)speculations[i]);
    mine->permitted = query_reserve(query, sizeof(uint64_t));
    if (query_is_leader(query))
        ASK(query, SYS_arch_prctl, ARCH_GET_XCOMP_PERM, mine->permitted);
    mine->memory_policy = query_reserve(query, sizeof(int));
    mine->nodes = query_reserve(query, NODE_BYTES);
    mine->memory_op = ASK(query, SYS_get_mempolicy, mine->memory_policy, mine->nodes, NODES_ARGUMENT, 0, 0);
    mine->membarrier_op = query_is_leader(query) ? ASK(query, SYS_membarrier, MEMBARRIER_ASK_REGISTRATIONS, 0, 0) : -1;
    return 0;
}

static bool asked_for(int64_t answer)
{
    return answer > 0 && answer & PR_SPEC_PRCTL && answer & (PR_SPEC_DISABLE | PR_SPEC_FORCE_DISABLE | PR_SPEC_DISABLE_NOEXEC);
}

static int switches_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    const struct switches_memo *mine = memo;
    struct thread *thread = query_thread(query);
    struct switches *switches = thread->switches = must_alloc(sizeof *switches);
    switches->tsc_denied = *(int *)query_read(query, mine->tsc) == TSC_DENIED;
    switches->cpuid_denied = query_result(query, mine->cpuid_op) == 0;
    int64_t policy = query_result(query, mine->machine_check_op);
    switches->machine_check = policy >= 0 ? (int)policy : MACHINE_CHECK_DEFAULT;
    switches->flushes_io = query_result(query, mine->flusher_op) == 1;
    for (int i = 0; i < SPECULATIONS; i++) {
        int64_t answer = query_result(query, mine->speculation_op[i]);
        switches->speculation[i] = asked_for(answer) ? (uint64_t)answer & ~(uint64_t)PR_SPEC_PRCTL : 0;
    }
    switches->uses_tiles = *(uint64_t *)query_read(query, mine->permitted) >> TILES & 1;
    if (query_result(query, mine->memory_op) == 0) {
        switches->memory_policy = *(int *)query_read(query, mine->memory_policy);
        memcpy(switches->nodes, query_read(query, mine->nodes), NODE_BYTES);
    }
    if (mine->membarrier_op >= 0 && query_result(query, mine->membarrier_op) > 0)
        switches->membarrier = (uint64_t)query_result(query, mine->membarrier_op);
    return 0;
}

static int switches_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct switches *switches = thread->switches;
    if (switches->tsc_denied)
        EMIT(batch, "time stamp counter", SYS_prctl, PR_SET_TSC, TSC_DENIED);
    if (switches->cpuid_denied)
        EMIT(batch, "cpuid", SYS_arch_prctl, ARCH_SET_CPUID, 0);
    if (switches->machine_check != MACHINE_CHECK_DEFAULT)
        EMIT(batch, "machine checks", SYS_prctl, PR_MCE_KILL, PR_MCE_KILL_SET, (uint64_t)switches->machine_check);
    if (switches->flushes_io)       /* needs CAP_SYS_RESOURCE */
        EMIT_FLAGS(batch, "I/O flusher", TOLERATING(LACKING_RIGHTS), SYS_prctl, PR_SET_IO_FLUSHER, 1);
    for (int i = 0; i < SPECULATIONS; i++)      /* seccomp may have forced it on already */
        if (switches->speculation[i])
            EMIT_FLAGS(batch, "speculation", TOLERATING(FORCED_SPECULATION), SYS_prctl, PR_SET_SPECULATION_CTRL,
                       (uint64_t)speculations[i], switches->speculation[i]);
    if (switches->uses_tiles)
        EMIT(batch, "leave to use AMX tiles", SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILES);
    if (switches->memory_policy)
        EMIT(batch, "memory policy", SYS_set_mempolicy, (uint64_t)switches->memory_policy, plan_data(batch->plan, switches->nodes, NODE_BYTES), NODES_ARGUMENT);
    for (int bit = 0; bit < 32; bit++)
        if (switches->membarrier >> bit & 1)
            EMIT(batch, "membarrier", SYS_membarrier, 1ull << bit, 0, 0);
    return 0;
}

const struct part part_switches = { .name = "switches", .ask = switches_ask, .collect = switches_collect, .emit = switches_emit };
