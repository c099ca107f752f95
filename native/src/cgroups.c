/*
 * Only a program with a user and a cgroup namespace of its own can mount cgroups and make any, and it sees them from the workspace's group on. So do we:
 * every path here is seen from pid 1's cgroup namespace, and hierarchies are mounted there, detached. In the host's own namespace that would also
 * reset the options of the host's v2 tree.
 */
#include "cgroup_tree.h"
#include "cgroups.h"
#include "doubt.h"
#include "proc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <linux/openat2.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TEXT_LIMIT (1u << 20)
#define VALUE_LIMIT 4096
#define MAX_GROUPS 1000
/* One program forks one workspace. */
static struct hierarchy hierarchies[BRANCH_HIERARCHIES];
static int hierarchy_count;
static pid_t first_pid;
static bool needed;             /* somebody is in a group made inside, or sees the groups */

/* ---- namespaces and text ---- */

int cgroups_enter(pid_t pid, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/cgroup", pid);
    int own = open("/proc/thread-self/ns/cgroup", O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int theirs = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0 || theirs < 0 || setns(theirs, CLONE_NEWCGROUP) < 0) {
        fail_errno(err, "cannot enter the cgroup namespace of the process with the host pid %d", pid);
        close_fd(&own);
        return -1;
    }
    return own;
}

void cgroups_leave(int own)
{
    if (setns(own, CLONE_NEWCGROUP) < 0)        /* every path of a cgroup would mean something else from now on */
        end_at_once("cannot return from a cgroup namespace: %s", strerror(errno));
    close(own);
}

/* The next line "8:pids:/inside\n" of a text is cut into name and path; both stay in the text. */
static bool next_line(char **text, char **name, char **path)
{
    char *line = strsep(text, "\n");
    *name = line ? strchr(line, ':') : NULL;
    *path = *name ? strchr(*name + 1, ':') : NULL;
    if (!*path)
        return false;
    *(*path)++ = 0;
    (*name)++;
    return true;
}

/* ---- hierarchies ---- */

int cgroup_mount(const char *name)
{
    AUTO_CLOSE int context = (int)syscall(SYS_fsopen, *name ? "cgroup" : "cgroup2", FSOPEN_CLOEXEC);
    AUTO_FREE char *list = must_copy_string(name);
    char *rest = list;
    for (char *item; *name && (item = strsep(&rest, ","));) {
        long done = strncmp(item, "name=", 5) == 0 ? syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "name", item + 5, 0)
                                                   : syscall(SYS_fsconfig, context, FSCONFIG_SET_FLAG, item, NULL, 0);
        if (done < 0)
            return -1;
    }
    if (syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
        return -1;
    return (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, 0);
}

static int open_hierarchy(const char *name, struct error *err)
{
    if (hierarchy_count == BRANCH_HIERARCHIES)
        return fail(err, "unsupported", "the host has more than %d hierarchies of cgroups", BRANCH_HIERARCHIES);
    struct stat st;
    struct hierarchy hierarchy = { .name = must_copy_string(name), .base = cgroup_mount(name) };
    if (hierarchy.base < 0 || fstat(hierarchy.base, &st) < 0)
        return fail_errno(err, "cannot open the cgroups of the source (%s)", *name ? name : "v2");
    hierarchy.own = st.st_ino != CGROUP_ROOT_INODE;
    hierarchies[hierarchy_count++] = hierarchy;
    return 0;
}

static int open_hierarchies(struct error *err)
{
    if (hierarchy_count)
        return 0;
    int back = cgroups_enter(first_pid, err);
    AUTO_FREE char *text = back < 0 ? NULL : proc_read(err, TEXT_LIMIT, NULL, "/proc/%d/cgroup", first_pid);
    char *rest = text, *name, *path;
    int status = text ? 0 : -1;
    while (status == 0 && rest && next_line(&rest, &name, &path))
        status = open_hierarchy(name, err);
    if (back >= 0)
        cgroups_leave(back);
    return status;
}

int cgroup_open(int base, const char *path, int flags)
{
    struct open_how how = { .flags = (__u64)(flags | O_CLOEXEC), .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS };
    return (int)syscall(SYS_openat2, base, *path ? path : ".", &how, sizeof how);
}

/* ---- reading groups ---- */

/* Files that are written to do something, not to set it, or that say who is there. */
static bool is_setting(const char *name, mode_t mode)
{
    static const char *const others[] = { "cgroup.procs", "cgroup.threads", "cgroup.kill", "cgroup.type", "cgroup.event_control", "tasks", "release_agent",
                                          "cpuacct.usage", "memory.force_empty", "memory.reclaim", "memory.pressure_level", NULL };
    static const char *const endings[] = { ".pressure", ".peak", ".failcnt", ".max_usage_in_bytes", ".reset_stats", NULL };
    if ((mode & 0600) != 0600)
        return false;
    for (int i = 0; others[i]; i++)
        if (strcmp(name, others[i]) == 0)
            return false;
    for (int i = 0; endings[i]; i++) {
        size_t length = strlen(name), end = strlen(endings[i]);
        if (length >= end && strcmp(name + length - end, endings[i]) == 0)
            return strcmp(name, "cgroup.pressure") == 0;        /* whether pressure is measured, not what was */
    }
    return true;
}

char *cgroup_value(int directory, const char *name)
{
    char text[VALUE_LIMIT];
    AUTO_CLOSE int fd = cgroup_open(directory, name, O_RDONLY);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (size < 0 || size == (ssize_t)sizeof text - 1)
        return NULL;
    text[size] = 0;
    if (size && text[size - 1] == '\n')
        text[size - 1] = 0;
    static const char disabled[] = "oom_kill_disable ";
    if (strcmp(name, "memory.oom_control") == 0) {
        char *rest = strncmp(text, disabled, strlen(disabled)) == 0 ? text + strlen(disabled) : NULL;
        if (!rest)
            return NULL;
        rest[strcspn(rest, "\n")] = 0;
        return must_copy_string(rest);
    }
    return must_copy_string(strcmp(text, "FREEZING") == 0 ? "FROZEN" : text);
}

static void add_setting(struct group *group, int directory, const char *name, const struct stat *st)
{
    group->settings = must_grow(group->settings, (size_t)(group->setting_count + 1) * sizeof *group->settings);
    group->settings[group->setting_count++] = (struct setting){
        .name = must_copy_string(name), .value = is_setting(name, st->st_mode) ? cgroup_value(directory, name) : NULL,
        .uid = st->st_uid, .gid = st->st_gid, .mode = st->st_mode & 07777,
    };
}

static int count_groups(void)
{
    int count = 0;
    for (int i = 0; i < hierarchy_count; i++)
        count += hierarchies[i].count;
    return count;
}

static int add_group(struct hierarchy *hierarchy, const char *above, const char *name, struct error *err)
{
    char path[CGROUP_PATH];
    if (count_groups() == MAX_GROUPS + hierarchy_count)
        return fail(err, "unsupported", "the workspace has made more than %d cgroups; remove some", MAX_GROUPS);
    if (snprintf(path, sizeof path, "%s%s%s", above, *above ? "/" : "", name) >= (int)sizeof path)
        return fail(err, "unsupported", "the cgroup /%.100s… has a path of more than %d bytes; remove it", above, CGROUP_PATH - 1);
    hierarchy->groups = must_grow(hierarchy->groups, (size_t)(hierarchy->count + 1) * sizeof *hierarchy->groups);
    hierarchy->groups[hierarchy->count++] = (struct group){ .path = must_copy_string(path) };
    return 0;
}

static int read_entry(struct hierarchy *hierarchy, int index, int directory, const char *name, struct error *err)
{
    struct stat st;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || fstatat(directory, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;               /* a group may have been removed; a file of one, never */
    if (S_ISDIR(st.st_mode))
        return add_group(hierarchy, hierarchy->groups[index].path, name, err);
    add_setting(&hierarchy->groups[index], directory, name, &st);
    return 0;
}

/* In threaded groups the threads of a process live apart, and only while the groups around are of that kind, too. */
static int check_group(const char *path, int directory, struct error *err)
{
    AUTO_FREE char *type = cgroup_value(directory, "cgroup.type");
    if (type && *path && strcmp(type, "domain") != 0)
        return fail(err, "unsupported", "the cgroup /%.200s is of the type \"%.40s\", which cannot be forked; remove it", path, type);
    return 0;
}

static int read_group(struct hierarchy *hierarchy, int index, struct error *err)
{
    struct stat st;
    int directory = cgroup_open(hierarchy->base, hierarchy->groups[index].path, O_RDONLY | O_DIRECTORY);
    if (directory < 0 && errno == ENOENT)
        return 0;               /* removed meanwhile; nobody can be in it */
    DIR *listing = directory < 0 ? NULL : fdopendir(directory);
    if (!listing)
        return fail_errno(err, "cannot list the cgroup /%s of the source", hierarchy->groups[index].path);
    int status = fstat(directory, &st);
    hierarchy->groups[index].self = (struct setting){ .uid = st.st_uid, .gid = st.st_gid, .mode = st.st_mode & 07777 };
    status = status < 0 ? status : check_group(hierarchy->groups[index].path, directory, err);
    for (struct dirent *entry; status == 0 && (entry = directory_next(listing, "a cgroup of the source", err));)
        status = read_entry(hierarchy, index, directory, entry->d_name, err);
    closedir(listing);
    return status < 0 || err->code ? -1 : 0;
}

static void forget_groups(struct hierarchy *hierarchy)
{
    for (int i = 0; i < hierarchy->count; i++) {
        struct group *group = &hierarchy->groups[i];
        for (int k = 0; k < group->setting_count; k++) {
            free(group->settings[k].name);
            free(group->settings[k].value);
        }
        free(group->settings);
        free(group->path);
    }
    hierarchy->count = 0;
}

static int read_groups(struct error *err)
{
    for (int i = 0; i < hierarchy_count; i++)
        forget_groups(&hierarchies[i]);
    for (int i = 0; i < hierarchy_count; i++) {
        if (add_group(&hierarchies[i], "", "", err) < 0)
            return -1;
        for (int k = 0; hierarchies[i].own && k < hierarchies[i].count; k++)
            if (read_group(&hierarchies[i], k, err) < 0)
                return -1;
    }
    return 0;
}

/* ---- before the freeze ---- */

/* Below the workspace's own group? A task that is ending says "/" of v1 hierarchies, and one from outside "/..". */
static bool is_in_group_inside(pid_t pid, struct error *err)
{
    struct error unread = { 0 };
    int back = cgroups_enter(first_pid, err);
    AUTO_FREE char *text = back < 0 ? NULL : proc_read(&unread, TEXT_LIMIT, NULL, "/proc/%d/cgroup", pid);
    doubt_error(&unread);
    char *rest = text, *name, *path;
    bool inside = false;
    while (rest && next_line(&rest, &name, &path))
        inside |= strcmp(path, "/") != 0 && strncmp(path, "/..", 3) != 0;
    if (back >= 0)
        cgroups_leave(back);
    return inside;
}

void cgroups_preflight(const struct process *process, const struct process *first, struct blockers *blockers)
{
    static char *own_text;
    struct error unread = { 0 }, err = { 0 };
    AUTO_FREE char *text = proc_read(&unread, TEXT_LIMIT, NULL, "/proc/%d/cgroup", process->pid);
    doubt_error(&unread);
    bool is_first = process == first;
    if (is_first) {
        free(own_text);
        own_text = text ? must_copy_string(text) : NULL;
        first_pid = first->pid;
    }
    /* Pid 1 may have gone into one itself; most others are where it is. */
    if (is_first || (text && own_text && strcmp(text, own_text) != 0))
        needed |= is_in_group_inside(process->pid, &err);
    if (err.code && kill(first_pid, 0) == 0)    /* else the fork finds that it has gone */
        blockers_add(blockers, process, -1, err.message);
}

void cgroups_check(struct blockers *blockers)
{
    struct error err = { 0 };
    if (needed && (open_hierarchies(&err) < 0 || read_groups(&err) < 0))
        blockers_add(blockers, NULL, -1, err.message);
}

void cgroups_note(pid_t first)
{
    first_pid = first;
    needed = true;
}

/* ---- capture ---- */

static int find_group(const struct hierarchy *hierarchy, const char *path)
{
    if (*path != '/' || strncmp(path, "/..", 3) == 0)
        return 0;               /* a process of a command from outside, which no branch has */
    for (int i = 0; i < hierarchy->count; i++)
        if (strcmp(hierarchy->groups[i].path, path + 1) == 0)
            return i;
    return -1;
}

int cgroups_parse(struct thread *thread, char *text, struct error *err)
{
    char *rest = text, *name, *path;
    thread->cgroups = must_alloc(BRANCH_HIERARCHIES * sizeof *thread->cgroups);
    while (rest && next_line(&rest, &name, &path))
        for (int i = 0; i < hierarchy_count; i++) {
            int index = strcmp(hierarchies[i].name, name) == 0 ? find_group(&hierarchies[i], path) : 0;
            if (index < 0)
                return fail(err, "unsupported", "%s is in the cgroup %.200s, which cannot be forked; move it back to the group above (write its pid to "
                            "cgroup.procs there)", process_label(thread->process), path);
            if (index)
                thread->cgroups[i] = index;
        }
    return 0;
}

static int read_thread(struct thread *thread, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, TEXT_LIMIT, NULL, "/proc/%d/task/%d/cgroup", thread->process->pid, thread->tid);
    return text ? cgroups_parse(thread, text, err) : -1;
}

int cgroups_read(struct world *world, struct error *err)
{
    if (!needed)
        return 0;
    if (open_hierarchies(err) < 0 || read_groups(err) < 0)
        return -1;
    int back = cgroups_enter(first_pid, err), status = back < 0 ? -1 : 0;
    for (int i = 0; i < world->process_count && status == 0; i++)
        for (int k = 0; !world->processes[i]->zombie && k < world->processes[i]->thread_count && status == 0; k++)
            status = read_thread(&world->processes[i]->threads[k], err);
    if (back >= 0)
        cgroups_leave(back);
    return status;
}

int cgroup_hierarchies(struct hierarchy **all)
{
    *all = hierarchies;
    return needed ? hierarchy_count : 0;
}
