/* Memory that several processes can share: memfds, /dev/shm files, shared anonymous mappings, SysV segments. Each object once a branch. */
#ifndef TCLONE_SHARED_H
#define TCLONE_SHARED_H

#include "branch.h"
#include "memory.h"
#include "world.h"

enum shared_kind { SHARED_MEMFD, SHARED_SHM_FILE, SHARED_ANONYMOUS, SHARED_SYSV };

struct shared_object {
    int index;
    enum shared_kind kind;
    uint64_t device, inode;     /* inode is the shmid for SysV */
    char *name;                 /* memfd name, or path below /dev/shm; " (deleted)" removed */
    bool linked;                /* a /dev/shm file that still has its name */
    int source;                 /* readable descriptor of the source's object */
    uint64_t size;
    mode_t mode;
    uid_t uid;
    gid_t gid;
    bool taken;                 /* by the description that takes over the branch's own open file */
    int huge_shift;             /* log2 of the page size of huge pages (huge_pages.c), 0 = ordinary memory */
    int seals;                  /* -1 = sealing is not possible */
    int aux;                    /* auxiliary slot, not for SysV */
    /* SysV */
    const struct namespace *ipc;
    int key;
    uid_t creator_uid;
    gid_t creator_gid;
    bool marked_removed, locked;        /* IPC_RMID, SHM_LOCK */
};

struct shared_objects {
    struct shared_object **list;
    int count;
};

/* Is this (as /proc/PID/maps numbers it) one of the file systems that only the kernel itself mounts, on which memfds and SysV segments lie? */
bool shared_is_kernel_device(uint64_t device);
/* The object behind a description (memfd or /dev/shm file), or NULL if it is neither. */
struct shared_object *shared_of_description(struct world *world, const struct description *description, struct error *err);
/* Bind every shared mapping to its object. */
int shared_bind_maps(struct world *world, struct error *err);
struct shared_objects *shared_objects(struct world *world);
struct shared_object *shared_add(struct world *world);

/* In a branch: make every object (no content yet, with the exception below) and all files of /dev/shm. */
int shared_make(struct world *world, struct branch *branch, struct error *err);
/* Sealed against writing: its content and its seals come before any mapping, by shared_make. */
bool shared_filled_early(const struct shared_object *object);
/* Copy the content of object `index` into a branch; returns bytes or -1. Thread-safe. */
int64_t shared_fill(struct world *world, struct branch *branch, int index, struct error *err);
/* After every mapping exists: seals, removal marks. */
int shared_finish(struct world *world, struct branch *branch, struct error *err);

#endif
