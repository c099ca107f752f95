/* Cgroups that were made inside the source, in a branch. */
#include "cgroup_tree.h"
#include "cgroups.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int write_text(int fd, const char *text)
{
    return write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1;
}

/* Each line by itself, as those files want it that have one a device. */
static int write_value(int fd, const char *name, const char *value)
{
    AUTO_FREE char *text = must_copy_string(value);
    bool controllers = strcmp(name, "cgroup.subtree_control") == 0;
    char *rest = text;
    int status = 0;
    for (char *item; status == 0 && (item = strsep(&rest, controllers ? " " : "\n"));) {
        char enabled[64];
        snprintf(enabled, sizeof enabled, "+%s", item);
        status = *item ? write_text(fd, controllers ? enabled : item) : 0;
    }
    return status;
}

static int set_value(int directory, const struct setting *setting)
{
    AUTO_FREE char *now = cgroup_value(directory, setting->name);
    if (!now || strcmp(now, setting->value) == 0)
        return 0;               /* a file of a controller that is not handed on yet is not there */
    AUTO_CLOSE int fd = cgroup_open(directory, setting->name, O_WRONLY);
    return fd < 0 ? -1 : write_value(fd, setting->name, setting->value);
}

static int own_entry(int directory, const char *name, const struct setting *wanted)
{
    struct stat st;
    if (fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : -1;
    bool owned = st.st_uid == wanted->uid && st.st_gid == wanted->gid, allowed = (st.st_mode & 07777) == wanted->mode;
    if (!owned && fchownat(directory, name, wanted->uid, wanted->gid, AT_SYMLINK_NOFOLLOW) < 0)
        return -1;
    return allowed ? 0 : fchmodat(directory, name, wanted->mode, 0);
}

/* Some settings are valid only together, whatever their order: so there is a second round, which must succeed. */
static int set_group(int base, const struct group *group, struct error *err)
{
    AUTO_CLOSE int directory = cgroup_open(base, group->path, O_RDONLY | O_DIRECTORY);
    if (directory < 0 || own_entry(directory, ".", &group->self) < 0)
        return fail_errno(err, "cannot set up the cgroup /%s of the branch", group->path);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < group->setting_count; i++) {
            const struct setting *setting = &group->settings[i];
            if (((setting->value && set_value(directory, setting) < 0) || own_entry(directory, setting->name, setting) < 0) && round == 1)
                return fail_errno(err, "cannot set %s of the cgroup /%s of the branch to \"%.100s\"", setting->name, group->path,
                                  setting->value ? setting->value : "its owner");
        }
    return 0;
}

static int make_groups(int base, const struct hierarchy *hierarchy, struct error *err)
{
    struct stat st;
    if (!hierarchy->own)
        return 0;
    if (fstat(base, &st) < 0 || st.st_ino == CGROUP_ROOT_INODE)
        return fail(err, "internal", "the branch has no cgroup of its own (%s)", *hierarchy->name ? hierarchy->name : "v2");
    for (int i = 1; i < hierarchy->count; i++) {
        const char *path = hierarchy->groups[i].path;
        const char *slash = strrchr(path, '/');
        AUTO_FREE char *above = must_copy_string(path);
        above[slash ? slash - path : 0] = 0;
        AUTO_CLOSE int directory = cgroup_open(base, above, O_RDONLY | O_DIRECTORY);
        if (directory < 0 || mkdirat(directory, slash ? slash + 1 : path, 0755) < 0)
            return fail_errno(err, "cannot make the cgroup /%s of the branch", path);
    }
    /* A cpuset takes nobody before it is set; but groups of the v2 tree have most of their files only in the end. */
    for (int i = 0; *hierarchy->name && i < hierarchy->count; i++)
        if (set_group(base, &hierarchy->groups[i], err) < 0)
            return -1;
    return 0;
}

int cgroups_make(struct branch *branch, struct error *err)
{
    struct hierarchy *hierarchies;
    int count = cgroup_hierarchies(&hierarchies);
    if (!count)
        return 0;
    int back = cgroups_enter(branch->init, err), status = back < 0 ? -1 : 0;
    for (int i = 0; i < count && status == 0; i++) {
        branch->cgroups[i] = cgroup_mount(hierarchies[i].name);
        if (branch->cgroups[i] < 0)
            status = fail_errno(err, "cannot open the cgroups of the branch (%s)", *hierarchies[i].name ? hierarchies[i].name : "v2");
    }
    if (back >= 0)
        cgroups_leave(back);
    for (int i = 0; i < count && status == 0; i++)
        status = make_groups(branch->cgroups[i], &hierarchies[i], err);
    return status;
}

static int place_in(int base, const struct hierarchy *hierarchy, const struct group *group, pid_t tid, struct error *err)
{
    char path[CGROUP_PATH + 16], number[16];
    snprintf(path, sizeof path, "%s/%s", group->path, *hierarchy->name ? "tasks" : "cgroup.procs");
    snprintf(number, sizeof number, "%d", tid);
    AUTO_CLOSE int fd = cgroup_open(base, path, O_WRONLY);
    if (fd < 0 || write_text(fd, number) < 0)
        return fail_errno(err, "cannot move a process of the branch to its cgroup /%s", group->path);
    return 0;
}

int cgroups_place(const struct branch *branch, const struct thread *thread, pid_t tid, struct error *err)
{
    struct hierarchy *hierarchies;
    int count = cgroup_hierarchies(&hierarchies);
    for (int i = 0; thread->cgroups && i < count; i++) {
        bool whole = !*hierarchies[i].name;     /* in the v2 tree a process moves with all its threads */
        if (thread->cgroups[i] && (!whole || thread == thread->process->threads)
            && place_in(branch->cgroups[i], &hierarchies[i], &hierarchies[i].groups[thread->cgroups[i]], tid, err) < 0)
            return -1;
    }
    return 0;
}

int cgroups_finish(const struct branch *branch, struct error *err)
{
    struct hierarchy *hierarchies;
    int count = cgroup_hierarchies(&hierarchies);
    for (int i = 0; i < count; i++)
        for (int k = 0; hierarchies[i].own && !*hierarchies[i].name && k < hierarchies[i].count; k++)
            if (set_group(branch->cgroups[i], &hierarchies[i].groups[k], err) < 0)
                return -1;
    return 0;
}
