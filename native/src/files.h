/* Files by path: opened for mappings, executables and descriptors; unlinked ones are copied ("ghosts"). */
#ifndef TCLONE_FILES_H
#define TCLONE_FILES_H

#include "branch.h"
#include "memory.h"
#include "plan.h"
#include "world.h"

struct mount_world;             /* mounts.h */
struct ghost_place;             /* mount_ghosts.c */

/* A file that processes use but that has no name any more. */
struct ghost {
    uint64_t device, inode;
    char *path;                 /* where it was */
    int source;                 /* readable */
    bool shares_offset;         /* source is a duplicate of the workspace's own descriptor: it must not be moved */
    bool linkable;              /* made by O_TMPFILE: may be given a name */
    const struct mount_world *mounts;   /* the nested namespace where it lies; NULL = the workspace's own mounts */
    struct ghost_place *place;  /* in a file system that was mounted there; NULL = it is made in the workspace's root */
    struct stat st;
    int aux;
};

/* A file to be opened once in a branch, at an auxiliary slot. */
struct file_opening {
    const struct mount_world *mounts;   /* where its path leads to it; NULL = the workspace's own mounts */
    uint64_t device, inode;
    char *path;
    char *name;                 /* another one, if the file has lost that; mounts is where that leads to it */
    bool writable;
    struct ghost *ghost;
    int aux;
};

struct file_openings {
    struct file_opening **list;
    int count;
    struct ghost **ghosts;
    int ghost_count;
    uint64_t ghost_bytes;
    int aux_count;
};

int files_new_aux(struct world *world);
uint64_t aux_slot(const struct world *world, int aux);
/* Does `path` in the source's root still name this inode? */
bool files_path_is(const struct world *world, const char *path, uint64_t inode);
/* The same, and by more than its number (identity.h): is it the file that the link `open_path` of the host's /proc leads to? */
bool files_path_leads_to(const struct world *world, const struct mount_world *mounts, const char *path, uint64_t inode, const char *open_path);
/* A ghost for an inode that has lost its name; `open_path` is a /proc path of the host that opens it, `mounts` where its name led to it. */
struct ghost *files_ghost(struct world *world, const struct mount_world *mounts, const char *path, uint64_t device, uint64_t inode, const char *open_path, const char *who,
                          struct error *err);
/* Is it of the /proc directory of a process that has ended ("/proc/41/stat", "/proc/41/fdinfo (deleted)")? */
bool files_of_dead(const struct world *world, const char *path);
/* Such a path, for a short-lived process that goes there or opens it: its own. */
uint64_t files_path_of_dead(struct plan *plan, const char *path);
/* The opening for a file mapping of a process. */
struct file_opening *files_for_vma(struct process *process, const struct vma *vma, struct error *err);
struct file_opening *files_for_executable(struct process *process, struct error *err);
int files_bind_maps(struct world *world, struct error *err);
/* Working directories that cannot be entered by their names: process->directory. */
int files_bind_directories(struct world *world, struct error *err);

/* Ops that open all of them (STAGE_MAKE, before descriptors). */
int files_emit(struct plan *plan, struct error *err);
/* Make a ghost in a directory of ours, under a name that is free there. */
int files_make_named(const struct ghost *ghost, int directory, const char *name, struct error *err);
/* Make the ghosts in a branch's root and queue them for their slots. */
int files_make_ghosts(struct world *world, struct branch *branch, struct error *err);

#endif
