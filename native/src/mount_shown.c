/* File systems mounted inside: can they be made again? Some show what does not lie in them, and a branch may have something else to show. */
#include "cgroups.h"
#include "mount_enter.h"
#include "mounts.h"
#include "proc.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int check_type(const struct mount *mount, struct error *err)
{
    static const char *const makeable[] = { "tmpfs", "ramfs", "devpts", "mqueue", "cgroup", "cgroup2", "binfmt_misc", "proc", "sysfs", NULL };
    for (int i = 0; makeable[i]; i++)
        if (strcmp(mount->type, makeable[i]) == 0)
            return 0;
    return fail(err, "unsupported", "the file system at %.200s (%s) of a nested mount namespace cannot be made again; unmount it", mount->point,
                mount->type);
}

/* Of message queues nothing is kept but that there are none. */
static int check_entry(const struct mount *mount, const struct dirent *entry, struct error *err)
{
    if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
        return 0;
    if (strcmp(mount->type, "binfmt_misc") == 0) {
        bool control = strcmp(entry->d_name, "register") == 0 || strcmp(entry->d_name, "status") == 0;
        return control ? 0 : fail(err, "unsupported", "%.200s of a nested user namespace holds the binary format %.100s (binfmt_misc), which cannot be forked; "
                                  "remove it (write -1 to it)", mount->point, entry->d_name);
    }
    if (strcmp(mount->type, "mqueue") == 0)
        return fail(err, "unsupported", "the IPC namespace whose queues %.200s shows holds the POSIX message queue %.100s; remove it", mount->point,
                    entry->d_name);
    return 0;
}

static int check_empty(void *context, struct error *err)
{
    const struct mount *mount = context;
    AUTO_CLOSE int copy = mount_copy(mount->point, err);
    int listing = copy < 0 ? -1 : openat(copy, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *directory = listing < 0 ? NULL : fdopendir(listing);
    if (!directory)
        return copy < 0 ? -1 : fail_errno(err, "cannot list %s of the source", mount->point);
    int status = 0;
    for (struct dirent *entry; status == 0 && (entry = directory_next(directory, mount->point, err));)
        status = check_entry(mount, entry, err);
    closedir(directory);
    return status < 0 || err->code ? -1 : 0;
}

static int check_formats(void *context, struct error *err)
{
    const struct mount *mount = context;
    char text[16] = "";
    AUTO_CLOSE int copy = mount_copy(mount->point, err);
    AUTO_CLOSE int status = copy < 0 ? -1 : openat(copy, "status", O_RDONLY | O_CLOEXEC);
    if (copy < 0)
        return -1;
    if (status < 0 || read(status, text, sizeof text - 1) < 0)
        return fail_errno(err, "cannot read %s/status of the source", mount->point);
    if (strncmp(text, "enabled", 7) != 0)
        return fail(err, "unsupported", "%.200s of a nested user namespace has its binary formats (binfmt_misc) switched off, which cannot be forked; write 1 to "
                    "its file status", mount->point);
    return check_empty(context, err);
}

struct shown_proc {
    const struct mount *mount;
    uint64_t inode;             /* of the workspace's own pid namespace */
};

/* Whoever makes the mounts is in the workspace's own pid namespace, and so its proc can show no other. */
static int check_proc(void *context, struct error *err)
{
    const struct shown_proc *shown = context;
    char link[64] = "", wanted[64];
    AUTO_CLOSE int place = mount_open_point(shown->mount->point);
    snprintf(wanted, sizeof wanted, "pid:[%lu]", (unsigned long)shown->inode);
    if (place < 0 || readlinkat(place, "1/ns/pid", link, sizeof link - 1) < 0 || strcmp(link, wanted) != 0)
        return fail(err, "unsupported", "%.200s shows a pid namespace made inside, which cannot be mounted again; unmount it", shown->mount->point);
    return 0;
}

/* Whoever makes the mounts is in the branch's own group, and that is what they show. The groups below it are made before (cgroups.c). */
static int check_groups(const struct world *world, const struct mount *mount, struct error *err)
{
    cgroups_note(world->source_pid);
    if (strncmp(mount->root, "/..", 3) == 0)
        return fail(err, "unsupported", "%.200s shows cgroups of the host, which cannot be mounted again; unmount it", mount->point);
    return 0;
}

int mounts_check_system(const struct world *world, const struct mount_world *mounts, const struct mount *mount, struct error *err)
{
    if (check_type(mount, err) < 0)
        return -1;
    struct shown_proc shown = { mount, world->namespaces->list[NAMESPACE_PID]->inode };
    if (strcmp(mount->type, "proc") == 0)
        return mount_enter(mounts->mnt_ns, check_proc, &shown, err);
    if (strncmp(mount->type, "cgroup", 6) == 0)
        return check_groups(world, mount, err);
    if (strcmp(mount->type, "mqueue") == 0)
        return mount_enter(mounts->mnt_ns, check_empty, (void *)mount, err);
    const struct namespace *owner = mounts->namespace->owner;
    if (strcmp(mount->type, "binfmt_misc") == 0 && owner && owner->nested)      /* elsewhere it shows the host's */
        return mount_enter(mounts->mnt_ns, check_formats, (void *)mount, err);
    return 0;
}
