/* The cgroups of a workspace as cgroups.c reads them and cgroup_build.c makes them. */
#ifndef TCLONE_CGROUP_TREE_H
#define TCLONE_CGROUP_TREE_H

#include <stdbool.h>
#include <sys/stat.h>
#include <sys/types.h>

#define CGROUP_PATH 1000
/* The root of a hierarchy has this inode; all other groups have larger ones. */
#define CGROUP_ROOT_INODE 1

/* A file of a group. */
struct setting {
    char *name;
    char *value;                /* NULL: nothing to set */
    uid_t uid;
    gid_t gid;
    mode_t mode;
};

struct group {
    char *path;                 /* from the workspace's own group, without a "/" before it; "" = that group */
    struct setting self;        /* of the directory: owner and mode */
    struct setting *settings;
    int setting_count;
};

struct hierarchy {
    char *name;                 /* "pids", "cpu,cpuacct", "name=systemd"; "" = the v2 tree */
    int base;                   /* the workspace's own group */
    bool own;                   /* else its processes are where the host's are, and no groups are read */
    struct group *groups;       /* [0] is the workspace's own; parents come before children */
    int count;
};

/* All hierarchies, and how many; 0 while there is nothing to make. */
int cgroup_hierarchies(struct hierarchy **all);
/* The group at the root of the caller's cgroup namespace, in the hierarchy of that name; -1 and errno. */
int cgroup_mount(const char *name);
/* Nothing in a cgroup file system is a link; if that ever changes, none is followed. */
int cgroup_open(int base, const char *path, int flags);
/* A file's text without its last newline, as it would have to be written; NULL if it cannot be read. The caller frees it. */
char *cgroup_value(int directory, const char *name);

#endif
