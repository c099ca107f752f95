/*
 * What livefork knows of the frozen source. Filled by capture, read by the compiler; nothing here changes after capture.
 * Process ids come in two numberings: `pid`, `tid` are the host's; `ns_*` those seen inside the workspace.
 */
#ifndef TCLONE_WORLD_H
#define TCLONE_WORLD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/user.h>

#include "error.h"

struct world;
struct process;
struct fd_kind;
struct filter;

/* An open file description: what dup and fork share. Each is made once in a branch, at descriptor number SLOT(description). */
struct description {
    int index;
    const struct fd_kind *kind;
    struct process *holder;     /* one process that has it open … */
    int holder_fd;              /* … and its number there */
    int local;                  /* our own duplicate (pidfd_getfd); never read(2) or write(2) it: that would change the source */
    struct stat st;
    int flags;                  /* F_GETFL */
    int64_t offset;             /* lseek(SEEK_CUR), or -1 */
    char *link;                 /* readlink of /proc/…/fd/N, as the workspace sees it; " (deleted)" kept */
    int owner_type;             /* F_SETOWN_EX type, owner (namespace pid) and F_SETSIG; owner_pid 0 = none */
    int owner_pid;
    int owner_signal;
    const struct thread *owner_thread;  /* F_OWNER_TID of a thread that is not the first; owner_pid is 0 then (release.c sets it) */
    void *data;                 /* the kind's own */
};

struct fd_entry {
    int fd;
    bool cloexec;
    struct description *description;
};

struct file_opening;            /* files.h */
struct memory_map;              /* memory.h */
struct namespace;               /* namespaces.h */

enum namespace_kind {
    NAMESPACE_USER, NAMESPACE_PID, NAMESPACE_MNT, NAMESPACE_NET, NAMESPACE_IPC, NAMESPACE_UTS, NAMESPACE_TIME, NAMESPACE_KINDS
};

/* A pid in each pid namespace that knows it: at[0] in the workspace's own, the last in the innermost. A group or session may be unknown inside (0). */
#define MAX_PID_LEVELS 4
struct pid_numbers {
    int count;
    int at[MAX_PID_LEVELS];
};

struct credentials {
    uint32_t uid[4], gid[4];    /* real, effective, saved, fs */
    uint32_t *groups;
    int group_count;
    uint64_t inheritable, permitted, effective, bounding, ambient;
    uint32_t securebits;
    bool no_new_privs;
};

/* Ids as the host numbers them, of a process whose user namespace may not know them all. */
struct host_ids {
    uint32_t uid[4], gid[4];
    uint32_t *groups;
    int group_count;
};

struct thread {
    struct process *process;
    pid_t tid, ns_tid;          /* ns_tid: in the workspace's own pid namespace */
    struct pid_numbers tids;    /* of a process in a nested pid namespace; else count is 0 */
    struct user_regs_struct regs;
    void *xstate;
    size_t xstate_size;
    int stop_signal;            /* job control has stopped it by this one; 0 = it has not */
    bool unread;                /* what the stop has done to its call could not be found out */
    bool stop_withheld;         /* one more SIGSTOP was on its way and kept back (inject.c) */
    uint64_t wait_began;        /* monotonic ns, of a relative wait whose remainder the kernel does not tell; 0 = unknown (waits.c) */
    uint64_t signal_mask;
    uint64_t robust_list, robust_list_size;     /* taken by tasks.c, like rseq and clear_tid */
    uint64_t rseq, rseq_size, rseq_signature;
    uint64_t clear_tid;         /* set_tid_address */
    stack_t alt_stack;
    char name[16];
    struct credentials credentials;
    int seccomp_mode, seccomp_filters;
    struct filter *filters;         /* parts/seccomp.c */
    struct attributes *attributes;  /* attributes.c: scheduling, affinity, pdeathsig, timer slack … */
    struct pending_signals *pending;
    bool denied;                    /* it may not look into its parent (parts/landlock.c) */
    struct place *place;            /* parts/place.c; NULL = it shares the process's working directory, root and umask */
    int *cgroups;                   /* which group, by hierarchy (cgroups.c), 0 = the workspace's own; NULL = nobody has made any */
    struct switches *switches;      /* parts/switches.c */
};

struct process {
    struct world *world;
    int index;                  /* parents come before their children */
    pid_t pid;                  /* a thread by which /proc and others show the process: the first, unless that has ended while others live */
    pid_t group_leader;         /* of the first thread, alive or not: the id that the host gives the process */
    bool leader_ended;          /* the first thread has ended, threads[0] is another */
    int leader_exit_code;
    char leader_name[16];
    char command[33];           /* for messages; empty = not read yet (process_label) */
    int ns_pid;                 /* ns_pid, ns_session, ns_group: in the workspace's own pid namespace, wherever the process lives */
    struct pid_numbers pids, groups, sessions;
    struct namespace *namespaces[NAMESPACE_KINDS];  /* where it lives */
    struct host_ids *host_ids;  /* of a process in a nested user namespace; else NULL */
    struct namespace *children_namespace;   /* pid namespace of its next children; NULL = one that has no process yet */
    struct namespace *children_time;        /* time namespace of its next children; NULL = its own */
    struct process *parent;     /* NULL for pid 1 */
    int ns_session, ns_group;
    bool zombie;
    int exit_code;              /* wait status, for zombies */
    uint32_t zombie_uid;
    char zombie_name[16];
    struct process *files_group;    /* who comes first of those that share its descriptor table; NULL = nobody does (sharing.c) */
    bool shares_fs;             /* root, working directory and umask are its parent's, too */
    bool threads_awaited;       /* somebody opens pidfds of its threads in a branch (kinds/pidfd.c) */
    int exit_signal;            /* what its parent gets when it ends: SIGCHLD, mostly */
    struct thread *threads;     /* [0] is the leader */
    int thread_count;
    struct fd_entry *fds;
    int fd_count;
    char *executable, *cwd, *root;
    struct file_opening *directory;     /* the working directory, if its name does not lead to it; files.c */
    int umask;
    struct memory_map *map;
    struct kernel_sigaction *actions;   /* [1..64] */
    struct process_state *state;        /* process_state.c: limits, timers, prctl … */
    int mem;                    /* /proc/PID/mem, read only */
    int pagemap;                /* /proc/PID/pagemap, from the first look at its pages until they are copied */
    int pidfd;
};

struct options {
    bool tcp_close;
    uint64_t ghost_limit;       /* bytes of unlinked files copied per fork */
};

struct world {
    struct options options;
    pid_t source_pid;
    struct process **processes;
    int process_count;
    struct description **descriptions;
    int description_count;
    int slot_base;              /* descriptor number of description 0 in a branch; above every number in use */
    int root;                   /* O_PATH directory: the root of the source's mount namespace */
    uint64_t frozen_ns;         /* monotonic, when the last thread had stopped */
    int net_ns, ipc_ns;         /* of the source */
    int pid_level;              /* of the workspace's pid namespace: how many numbers NSpid has before it */
    struct namespaces *namespaces;
    struct mounts *mounts;      /* mounts.h; NULL while no mount namespace is nested */
    struct unix_table *unix_sockets;    /* kinds/unix.c */
    struct inet_table *inet_sockets;    /* kinds/inet.c: streams */
    struct shared_objects *shared;      /* shared.c: memfd, /dev/shm, SysV, shared anonymous memory */
    struct families *families;  /* family.c: processes that share memory through forks */
    struct file_openings *openings;     /* files.c: files opened for mappings, executables, directories */
};

/* "pid 41 (node)", in the workspace's numbering; the text lives in a static ring of four. */
const char *process_label(const struct process *process);
/* The name of its command, cut to `size`, without control characters: any process may call itself anything. "?" when it has gone. */
void process_command(const struct process *process, char *name, size_t size);
struct process *process_by_ns_pid(const struct world *world, int ns_pid);

#endif
