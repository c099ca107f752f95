/* What lies at fixed places of the arena, shared by livefork, tclone-restore and the processes of the branch; and the messages to tclone-restore. */
#ifndef TCLONE_ARENA_H
#define TCLONE_ARENA_H

#include <stdint.h>

#include "op.h"

#define ARENA_STAGES 4
#define ARENA_EARLY_STAGES 2    /* MAKE and CONNECT come before the process tree, FILL and WATCH after the late batch */
#define RESTORE_SOCKET 3
#define MESSAGE_SLOTS 200

struct arena_control {
    /* futex words, in the order of events */
    uint32_t forked;        /* nodes that exist */
    uint32_t grouped;       /* nodes that have their process group */
    uint32_t late;          /* 1: pid 1 has run the late batch; everyone goes on to its own */
    uint32_t mapped;        /* processes that have their memory map and descriptors */
    uint32_t ready;         /* threads that wait to be released */
    uint32_t never;         /* nobody ever raises this: threads wait on it until ptrace takes them */
    struct op_fault fault;
    char text[256];         /* what tclone-restore itself has to say about a fault */

    uint64_t interpreter;   /* address of interp_start's copy */
    uint64_t stages[ARENA_STAGES];
    uint64_t late_batch;
    uint64_t creators;      /* struct arena_creator[creator_count] */
    uint32_t creator_count;
    uint32_t node_count;    /* without steps: how many join groups */
    uint64_t nodes;         /* struct tree_node[array_length]; [0] is pid 1 */
    uint32_t array_length, pad;
    int32_t last_pid;
    uint32_t slot_base;
};

struct arena_creator {
    uint32_t stage;
    int32_t pid;            /* 0 = any */
    uint32_t uid, gid;
    uint64_t batch;
};

/* Memory that a node maps, and livefork fills, before the node forks: its descendants inherit it (family.h). */
struct arena_family {
    uint32_t mapped;        /* futex word: 1 = the areas are there */
    uint32_t filled;        /* futex word: 1 = go on */
    uint64_t map_batch;
    uint64_t release_batch; /* run when all children are forked; 0 = the node keeps what it holds */
    uint64_t next;          /* another struct arena_family of the same node; 0 = none */
};

enum node_kind {
    NODE_PROCESS,
    NODE_ZOMBIE,            /* ends with exit_code once everybody is in its group */
    NODE_STEP,              /* forks its children, then ends at once: they go to pid 1 */
    NODE_GROUP,             /* holds a process group whose leader has ended, until everybody is in its group */
};

struct tree_node {
    int32_t pid;            /* 0 = any */
    int32_t kind;
    int32_t new_session;    /* call setsid */
    int32_t group;          /* 0 = leave as it is */
    int32_t exit_code;
    int32_t first_child, next_sibling;      /* indices, -1 = none */
    int32_t before_session; /* is forked before its parent calls setsid */
    uint64_t batch;
    uint64_t session_batch; /* runs right after setsid, before children are forked; 0 = none */
    uint32_t host_pid;      /* written by the node before it forks */
    uint32_t pad;
    uint64_t families;      /* struct arena_family; 0 = none */
};

enum message_type { MESSAGE_SETUP = 1, MESSAGE_GIVE, MESSAGE_RUN };

/* SETUP carries the descriptors arena, root mount, host's /proc; GIVE carries `count` descriptors for the numbers in slots. */
struct message {
    uint32_t type, count;
    uint64_t arena, arena_size;
    uint32_t slots[MESSAGE_SLOTS];
};

#endif
