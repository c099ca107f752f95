/* Mounts made inside a workspace: what can be forked, what is refused, and how it comes back. */
#ifndef TCLONE_MOUNTS_H
#define TCLONE_MOUNTS_H

#include <stdbool.h>

#include "blockers.h"
#include "branch.h"
#include "mount_plan.h"
#include "namespaces.h"
#include "world.h"

/* ---- before the freeze (mount_check.c) ---- */

/* The mounts that the process sees (each mount namespace once) and the places it uses. */
void mounts_preflight(const struct process *process, struct blockers *blockers);
/* Refuse a link of the process below /proc ("cwd", "fd/5") whose target is too long to be named. */
void mounts_refuse_long(const struct process *process, const char *link, int fd, struct blockers *blockers);
/* A file system that may be mounted nowhere in the workspace, and is no FUSE server's. */
void mounts_note_harmless(uint64_t device);
/* Is this the id of a mount in one of the namespaces looked at? */
bool mounts_preflight_knows(int id);
/*
 * Is descriptor `fd` a file of a FUSE server? Then it is refused and must not be touched any further: looking at such a file, or even closing a
 * duplicate of its descriptor, waits for a server that may never answer.
 */
bool mounts_refuse_fuse(const struct process *process, int fd, const char *link, struct blockers *blockers);

/* ---- capture (mounts.c) ---- */

/* A mount namespace of the workspace. */
struct mount_world {
    struct namespace *namespace;
    int mnt_ns;                 /* descriptor of it */
    int root;                   /* O_PATH: its root directory */
    struct mount_table table;
    struct mount_steps steps;
};

/* A tree or single file of an own file system, as far as it can be reached. */
struct own_part {
    char *root;                 /* its path in the file system; "" = all of it */
    int copy;                   /* of the mount through which it is read */
    bool directory;
};

/* A file system that was mounted inside, made anew in a branch by the namespace `maker`. */
struct own_system {
    uint64_t device;
    const struct mount *mount;
    struct mount_world *maker;
    struct own_part *parts;
    int part_count;
    int slot;                   /* auxiliary */
    uint64_t made, filled;      /* futex words in the arena; 0 = it has no content to copy */
};

struct mounts {
    struct mount_world *list;   /* [0] is the workspace's own */
    int count;
    struct own_system *systems;
    int system_count;
    uint64_t arena;             /* of the plan */
};

/*
 * Learn from a prepared branch (host pid of its restorer) which mounts a workspace has anyway. Without it (the doctor) all that the workspace's own
 * namespace has counts as such.
 */
int mounts_read_base(pid_t restorer, struct error *err);
/* world->mounts stays NULL if there are no others than those and no mount namespace is nested. */
int mounts_read(struct world *world, struct error *err);
/* Refuse a file system that cannot be made again with what it shows (mount_shown.c). */
int mounts_check_system(const struct world *world, const struct mount_world *mounts, const struct mount *mount, struct error *err);
/* Let go of our descriptors (preflight). */
void mounts_close(struct world *world);
/* The mount namespace in which a file was opened, by a descriptor of ours; NULL = the workspace's own (or none any more). */
const struct mount_world *mounts_of_file(const struct world *world, int fd);
/* A file system that was mounted inside, by its device; NULL = it is none. */
const struct own_system *mounts_system(const struct world *world, dev_t device);
/* Where the paths of a process lead. */
const struct mount_world *mounts_of_process(const struct process *process);
/* The same for a link below /proc to a file that the process uses. Only processes in nested namespaces are asked about (2 us). */
const struct mount_world *mounts_of_link(const struct process *process, const char *path);

/* ---- in a branch ---- */

/* Into the set-up batch of each nested mount namespace (mount_build.c). */
int mounts_emit(struct plan *plan, struct error *err);
/* Is it the node of a terminal, which a branch cannot have before the terminal (mount_terminals.c)? */
bool mounts_awaits_terminal(const struct mount_world *mounts, const struct mount_step *step);
/* Mount those, once the terminals are there. */
void mounts_emit_terminals(struct plan *plan);
/* Around ops of pid 1 that open a file by its path: nothing is emitted for NULL. */
void mounts_enter(struct batch *batch, const struct mount_world *mounts);
void mounts_leave(struct batch *batch, const struct mount_world *mounts);
/*
 * Between the two, around the making of files that are to be this user's: a file system of a nested user namespace takes none from ids that it does not
 * know. Returns what the end wants back.
 */
struct mount_maker { uint64_t user, group; };
struct mount_maker mounts_make_as(struct batch *batch, uid_t uid, gid_t gid);
void mounts_made(struct batch *batch, struct mount_maker before);
/* Choose where a file without a name is made in a file system of a nested namespace: ghost->place, or NULL. `number` is its own among all. */
struct ghost;
void mounts_place_ghost(const struct world *world, struct ghost *ghost, int number);
/* Open such a one at its slot, once all mounts are there (mount_ghosts.c). */
void mounts_emit_ghost(struct batch *batch, const struct ghost *ghost);
/* Livefork's part: those of a file system, whose root is open at `root`. */
int mounts_fill_ghosts(const struct world *world, const struct own_system *system, int root, struct error *err);
/* Livefork's part: fill the file systems as the branch makes them (mount_fill.c). */
int mounts_fill(const struct world *world, struct branch *branch, struct error *err);

#endif
