/* What lies at fixed places of the arena, shared by livefork, tclone-restore and the processes of the branch; and the messages to tclone-restore. */
#ifndef TCLONE_ARENA_H
#define TCLONE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "op.h"

#define ARENA_STAGES 4
#define ARENA_EARLY_STAGES 2    /* MAKE and CONNECT come before the process tree, FILL and WATCH after the late batch */
#define RESTORE_SOCKET 3
#define MESSAGE_SLOTS 200

#define ARENA_PID_LEVELS 4      /* MAX_PID_LEVELS */
#define ARENA_NAMESPACE_KINDS 7 /* NAMESPACE_KINDS */
#define NEST_USER 0             /* NAMESPACE_USER */
#define NEST_PID 1
#define NEST_MNT 2              /* NAMESPACE_MNT */
#define NEST_TIME 6             /* NAMESPACE_TIME */

/*
 * A process in a nested user namespace may not choose its children's pids in the pid namespaces around. livefork's helper does (namespace_service.c):
 * it sets which pid is the next. One request at a time, under `lock`; once the tree stands one ticket after the other.
 */
enum service_verb { SERVICE_NEXT_PIDS = 1, SERVICE_RESET, SERVICE_TICKETS };

struct arena_service {
    uint32_t lock;              /* 0 free, 1 taken, 2 taken and waited for */
    uint32_t request, granted;  /* futex words: counts */
    int32_t verb, count;
    int32_t namespaces[ARENA_PID_LEVELS], pids[ARENA_PID_LEVELS];
    uint32_t ticket, used;      /* futex words: whose turn it is; how many had theirs */
    uint32_t ticket_count;
    uint64_t tickets;           /* struct arena_ticket[ticket_count] */
};

/* A clone by a process that may not choose all numbers of its child. */
struct arena_ticket {
    int32_t count;
    int32_t namespaces[ARENA_PID_LEVELS], pids[ARENA_PID_LEVELS];
};

struct arena_namespace {
    uint32_t made;              /* futex word: 1 = open at slot */
    int32_t kind;
    uint64_t flag;
    int32_t parent, owner;      /* indices, -1 = none */
    int32_t origin;             /* mount namespaces: the one it is a copy of, -1 = the workspace's own */
    int32_t nested;
    uint32_t slot, pad3;
    /* user namespaces */
    uint32_t owner_uid, owner_gid;  /* as the parent numbers ids; whoever makes it must be known there */
    uint32_t setgroups_denied;
    uint64_t uid_map, gid_map;  /* texts to write */
    /* time namespaces */
    uint64_t offsets;           /* text to write */
    uint32_t by_process;        /* 1 = made by a process whose children live there, and not it itself */
    /* pid namespaces */
    uint32_t init_host_pid;     /* written by the first process */
    uint64_t setup;             /* batch to run in it, 0 = none */
};

/* Of a node that lives in nested namespaces, or has children that do. */
struct arena_nest {
    int32_t pids[ARENA_PID_LEVELS], pid_count;      /* innermost first, as clone3 wants them */
    int32_t helper_pids[ARENA_PID_LEVELS], helper_count;    /* of the process that makes its pid namespace, if its parent cannot */
    int32_t namespaces[ARENA_NAMESPACE_KINDS];      /* indices, -1 = as inherited */
    int32_t children;           /* pid namespace of its next children; -1 = its own, -2 = a fresh one */
    int32_t children_time;      /* time namespace that it makes for its children; -1 = they live in its own */
    int32_t dead_pids[ARENA_PID_LEVELS], dead_count;    /* not 0: `children` has lost its first process, which gets these */
    int32_t early_group;        /* to join before it forks: a child inherits it and cannot join, being in another pid namespace; 0 = none */
    int32_t sets_ids;           /* before it enters a user namespace, where these ids may not be known */
    int32_t uid[3], gid[3];     /* -1 = leave */
    uint32_t sets_groups, group_count;
    uint64_t groups;
    uint64_t directory;         /* batch: goes to its working directory, before it enters a user namespace; 0 = none */
};

/* Most bytes of what tclone-restore says on its socket before it ends, when there is no arena yet. */
#define RESTORE_TEXT 256

struct arena_control {
    /* futex words, in the order of events */
    uint32_t forked;        /* nodes that exist */
    uint32_t grouped;       /* nodes that have their process group */
    uint32_t late;          /* 1: pid 1 has run the late batch; everyone goes on to its own */
    uint32_t mapped;        /* processes that have their memory map and descriptors */
    uint32_t ready;         /* threads that wait to be released */
    uint32_t never;         /* nobody ever raises this: threads wait on it until ptrace takes them */
    struct op_fault fault;
    uint64_t tolerated[OP_TOLERANCES][2];   /* a bit for each error below 128; at once behind `fault`, where interp.S looks */
    char text[256];         /* what tclone-restore itself has to say about a fault */

    uint64_t interpreter;   /* address of interp_start's copy */
    uint64_t stages[ARENA_STAGES];
    uint64_t late_batch;
    uint64_t mounts;        /* batch that makes the workspace's own mounts and interfaces; 0 = there are no others than in every workspace */
    uint64_t creators;      /* struct arena_creator[creator_count] */
    uint32_t creator_count;
    uint32_t node_count;    /* without steps: how many join groups */
    uint64_t nodes;         /* struct tree_node[array_length]; [0] is pid 1 */
    uint32_t array_length, pad;
    int32_t last_pid;
    uint32_t slot_base;
    uint64_t namespaces;    /* struct arena_namespace[namespace_count]; count 0 = nothing is nested */
    uint32_t namespace_count;
    uint32_t pad2;
    struct arena_service service;
};
_Static_assert(offsetof(struct arena_control, tolerated) == offsetof(struct arena_control, fault) + OP_FAULT_SIZE, "interp.S knows this place");

struct arena_creator {
    uint32_t stage;
    int32_t pid;            /* 0 = any */
    uint32_t uid, gid;
    uint64_t batch;
};

/* Content that lies in the arena. */
struct arena_piece {
    uint64_t address, data, size;
};

/* Memory that a node maps, and livefork fills, before the node forks: its descendants inherit it (family.h). */
struct arena_family {
    uint32_t mapped;        /* futex word: 1 = the areas are there */
    uint32_t filled;        /* futex word: 1 = go on */
    uint64_t map_batch;
    uint64_t pieces;        /* struct arena_piece[piece_count]: what the node itself copies into its areas instead of waiting */
    uint32_t piece_count;
    uint32_t pad;
    uint64_t release_batch; /* run when all children are forked; 0 = the node keeps what it holds */
    uint64_t next;          /* another struct arena_family of the same node; 0 = none */
};

enum node_kind {
    NODE_PROCESS,
    NODE_ZOMBIE,            /* ends with exit_code once everybody is in its group */
    NODE_STEP,              /* forks its children, then ends at once: they go to pid 1 */
    NODE_GROUP,             /* holds a process group whose leader has ended, until everybody is in its group */
};

/* When its parent forks a node. */
enum fork_time {
    AT_LAST,
    BEFORE_SESSION,         /* before the parent calls setsid */
    BEFORE_NAMESPACES,      /* before the parent enters nested namespaces, out of which the node would not find back */
};

struct tree_node {
    int32_t pid;            /* as it knows it itself; 0 = any */
    int32_t kind;
    int32_t new_session;    /* call setsid */
    int32_t group;          /* 0 = leave as it is */
    int32_t exit_code;
    int32_t first_child, next_sibling;      /* indices, -1 = none */
    int32_t before;         /* enum fork_time */
    int32_t adopts;         /* must be a child subreaper while its descendants are forked: steps below it end */
    int32_t exit_signal;
    int32_t shares_fs;      /* root, working directory and umask, with its parent */
    uint32_t pad_fs;
    uint32_t uid;           /* of a zombie, like its name: waitid and /proc show them */
    char name[16];
    uint64_t batch;
    uint64_t session_batch; /* runs right after setsid, before children are forked; 0 = none */
    uint64_t nest;          /* struct arena_nest; 0 = none */
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
