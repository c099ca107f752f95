/*
 * Namespaces. A branch's container brings the workspace's own ones along (list[0 .. NAMESPACE_KINDS - 1], by kind). Those that programs made
 * inside ("nested") are made again before anything else in the branch, each by a short-lived helper in the user namespace that owns it; a pid
 * namespace by the fork of its first process. While a branch is built each is open at aux_slot(world, namespace->aux), for setns.
 *
 * A namespace that nobody lives in but that has a descendant, or that a descriptor or a bind mount holds, is in the list too.
 */
#ifndef TCLONE_NAMESPACES_H
#define TCLONE_NAMESPACES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "plan.h"
#include "world.h"

#define MAX_ID_RANGES 340       /* the kernel's own limit */

/* Ids `inside` … of a user namespace are the host's `host` …. */
struct id_range {
    uint32_t inside, host, count;
};

struct id_map {
    struct id_range *ranges;
    int count;
};

struct namespace {
    int index;                  /* in the list: parent and owner have lower ones */
    enum namespace_kind kind;
    uint64_t inode;
    int local;                  /* our descriptor of the source's; -1 for the workspace's own */
    bool nested;                /* false: the workspace's own */
    int level;                  /* user and pid namespaces: 0 for the workspace's own */
    struct namespace *parent;   /* user and pid namespaces; NULL for the workspace's own */
    struct namespace *owner;    /* the user namespace that owns it (of a user namespace: its parent); NULL for the workspace's own */
    struct process *member;     /* the first process in it; NULL = nobody */
    int member_count;
    int aux;                    /* slot of its descriptor in a branch under construction */
    /* user namespaces */
    uint32_t owner_uid;         /* host's */
    struct id_map uids, gids;
    bool setgroups_denied;
    /* mount namespaces */
    struct namespace *origin;   /* the nested one it was copied from; NULL = the workspace's own */
    /* pid namespaces */
    int highest_pid;            /* in use, in its own numbering */
    /* net namespaces */
    struct network *network;    /* what lies in it (network.h); NULL = not looked at */
    /* time namespaces */
    char *offsets;              /* as /proc/PID/timens_offsets tells and takes them */
    int64_t monotonic_offset;   /* ns that CLOCK_MONOTONIC is ahead there */
    /* uts namespaces */
    char host_name[65], domain_name[65];
};

struct namespaces {
    struct namespace **list;
    int count;
    bool nested;                /* there are others than the workspace's own */
};

/* The CLONE_NEW… flag. */
uint64_t namespace_flag(enum namespace_kind kind);
/* As in /proc/PID/ns. */
const char *namespace_name(enum namespace_kind kind);

/* Which namespaces a live process is in: fills process->namespaces. Cheap; pid 1 must come first. */
int namespaces_of_process(struct process *process, struct error *err);
/* The numbers of an NSpid-like line of /proc/PID/status from the workspace's pid namespace on inwards; false if it has too many. */
bool namespaces_numbers(const struct world *world, const char *field, struct pid_numbers *numbers);
/* The kind of a namespace in which this thread (host id) lives and its process does not; NULL = there is none, or it has ended. */
const char *namespace_of_thread_apart(const struct process *process, pid_t tid);
/* Once all processes are known: the graph and contents of nested namespaces. Fails with "unsupported" for what cannot be made again. */
int namespaces_link(struct world *world, struct error *err);
/* Let go of our descriptors (preflight). */
void namespaces_close(struct world *world);
/* The namespace behind an nsfs descriptor of ours, added to the list if it is new; NULL on failure, or if it lies outside the workspace. */
struct namespace *namespace_of_descriptor(struct world *world, int fd, enum namespace_kind kind, struct error *err);

/* Does `ancestor` contain the user or pid namespace (or is it the same)? */
bool namespace_contains(const struct namespace *ancestor, const struct namespace *inner);
/* An id of the host as a user namespace numbers it; false = not mapped there. The workspace's own numbers ids as the host does. */
bool namespace_id_inside(const struct namespace *user, bool group, uint32_t host, uint32_t *inside);

/*
 * Run once, right after the namespace was made, by the helper that made it, which is in it and in its owner with all capabilities: for what
 * lies in the namespace (a host name, mounts). The descriptor table is shared, the root directory is not changed yet.
 */
struct batch *plan_namespace(struct plan *plan, const struct namespace *namespace);

/* A number that nobody uses in this pid namespace, for short-lived helpers. */
int namespace_spare_pid(struct namespace *namespace);
/* As the process itself knows it: in the innermost pid namespace. */
int inner_pid(const struct process *process);
int inner_tid(const struct thread *thread);

#endif
