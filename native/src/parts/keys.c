/*
 * Memory protection keys: which are allocated. The key of a mapping is in its flags (memory_flags.c), what a thread may do with it in PKRU, which is a
 * part of its extended registers; memory_batch.c gives both back.
 */
#include "parts.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#define KEYS 16
#define NOWHERE 0x7fffffffe000ull   /* the page below TASK_SIZE: the kernel maps nothing there */

struct keys_memo {
    int op[KEYS];
};

/* Nothing lies there, so nothing is changed: for an allocated key the answer is ENOMEM, else EINVAL. */
static int keys_ask(struct query *query, void **memo, struct error *err)
{
    (void)err;
    if (!query_is_leader(query) || !__builtin_cpu_supports("pku"))
        return 0;
    struct keys_memo *mine = *memo = must_alloc(sizeof *mine);
    for (int key = 1; key < KEYS; key++)
        mine->op[key] = ASK(query, SYS_pkey_mprotect, NOWHERE, 4096, PROT_NONE, (uint64_t)key);
    return 0;
}

static int keys_collect(struct query *query, void *memo, struct error *err)
{
    (void)err;
    const struct keys_memo *mine = memo;
    struct process_state *state = process_state(query_thread(query)->process);
    for (int key = 1; mine && key < KEYS; key++)
        if (query_result(query, mine->op[key]) == -ENOMEM)
            state->keys |= 1u << key;
    return 0;
}

const struct part part_keys = { .name = "protection keys", .ask = keys_ask, .collect = keys_collect };
