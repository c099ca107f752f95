/* The mounts of a namespace, as /proc/PID/mountinfo lists them. */
#ifndef TCLONE_MOUNTINFO_H
#define TCLONE_MOUNTINFO_H

#include <stdbool.h>
#include <stdint.h>

#include "error.h"

struct mount {
    int id, parent_id;
    struct mount *parent;       /* NULL: the root of the namespace, or out of sight */
    uint64_t device;            /* major << 32 | minor */
    char *root;                 /* path of its root within the file system; unescaped */
    bool root_removed;          /* … which has lost its name */
    char *point;                /* where it is mounted, from the namespace's root */
    uint64_t attributes;        /* MOUNT_ATTR_* as mount_setattr takes them */
    int shared, master;         /* peer groups, 0 = none */
    bool unbindable;
    char *type, *source;
    char *options;              /* of the file system: "rw,size=1024k" */
    int index;
};

struct mount_table {
    struct mount *list;         /* in the order in which they were made */
    int count;
};

/* All mounts of the namespace behind `mnt_ns`, seen from its own root. */
int mount_table_read(struct mount_table *table, int mnt_ns, struct error *err);
void mount_table_free(struct mount_table *table);
/* The mount on which everything else of the namespace hangs; NULL if there is none. */
struct mount *mount_table_root(const struct mount_table *table);
/* Is `other` mounted over the place of `mount`, or above that, without `mount` hanging on it? */
bool mount_hides(const struct mount *other, const struct mount *mount);
/* Parse text of the form of /proc/PID/mountinfo (exposed for the fuzzer). */
int mount_table_parse(struct mount_table *table, char *text, struct error *err);

/* In one namespace, and in all nested ones of a workspace. */
#define MAX_MOUNTS 1000
#define MAX_NESTED_MOUNTS 20000

#endif
