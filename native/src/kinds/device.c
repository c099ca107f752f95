/* Character devices without state of their own; and kind_refused, which names what cannot be forked at all. */
#include "kinds.h"
#include "../descriptors.h"
#include "../files.h"
#include "../mounts.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#define MEMORY_MAJOR 1          /* null, zero, full, random, urandom */
#define NULL_MINOR 3
#define ZERO_MINOR 5
#define FULL_MINOR 7
#define RANDOM_MINOR 8
#define URANDOM_MINOR 9
#define MISC_MAJOR 10
#define FUSE_MINOR 229
#define ANY_MINOR (~0u)
#define OPEN_FLAGS (O_ACCMODE | O_APPEND | O_NONBLOCK | O_NOFOLLOW)

static const char *device_path(const struct stat *st)
{
    if (!S_ISCHR(st->st_mode) || major(st->st_rdev) != MEMORY_MAJOR)
        return NULL;
    switch (minor(st->st_rdev)) {
    case NULL_MINOR: return "/dev/null";
    case ZERO_MINOR: return "/dev/zero";
    case FULL_MINOR: return "/dev/full";
    case RANDOM_MINOR: return "/dev/random";
    case URANDOM_MINOR: return "/dev/urandom";
    default: return NULL;
    }
}

static bool device_match(const struct description *description)
{
    return device_path(&description->st) && !(description->flags & O_PATH);
}

/* A node that somebody made elsewhere: where it is, or that it has lost its name. The usual ones the branch has in its own /dev. */
struct device_node {
    bool unlinked;
    const struct mount_world *mounts;
};

static int device_capture(struct world *world, struct description *description, struct error *err)
{
    (void)err;
    if (strcmp(description->link, device_path(&description->st)) == 0)
        return 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", description->local);
    struct device_node node = { description->st.st_nlink == 0, mounts_of_file(world, description->local) };
    /* What leads nowhere is opened by its standard name: the device is the same. */
    if (!node.unlinked && !files_path_leads_to(world, node.mounts, description->link, description->st.st_ino, path))
        return 0;
    struct device_node *data = description->data = must_alloc(sizeof *data);
    *data = node;
    return 0;
}

/* For as long as it takes to open it, in /dev, where devices work. */
static uint64_t emit_unlinked_node(struct batch *batch, const struct description *description, const char *what)
{
    const struct stat *st = &description->st;
    char name[64];
    snprintf(name, sizeof name, "/dev/.tclone-device-%d", description->index);
    uint64_t path = plan_string(batch->plan, name);
    EMIT(batch, what, SYS_mknodat, (uint64_t)AT_FDCWD, path, S_IFCHR | 0600, st->st_rdev);
    EMIT(batch, what, SYS_fchownat, (uint64_t)AT_FDCWD, path, st->st_uid, st->st_gid, 0);
    EMIT(batch, what, SYS_fchmodat, (uint64_t)AT_FDCWD, path, st->st_mode & 07777);
    return path;
}

static int device_emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    if (stage != STAGE_MAKE)
        return 0;
    struct batch *batch = &plan->common[stage];
    const struct device_node *node = description->data;
    const char *what = description_label(description);
    uint64_t path = node && node->unlinked ? emit_unlinked_node(batch, description, what)
                                           : plan_string(plan, node ? description->link : device_path(&description->st));
    const struct mount_world *mounts = node && !node->unlinked ? node->mounts : NULL;
    mounts_enter(batch, mounts);
    EMIT(batch, what, SYS_openat, (uint64_t)AT_FDCWD, path, (uint64_t)(description->flags & OPEN_FLAGS) | O_CLOEXEC);
    emit_to_slot(batch, description, what);
    mounts_leave(batch, mounts);
    if (node && node->unlinked)
        EMIT(batch, what, SYS_unlinkat, (uint64_t)AT_FDCWD, path, 0);
    emit_status_flags(batch, description, what);
    return 0;
}

const struct fd_kind kind_device = {
    .name = "device",
    .match = device_match,
    .capture = device_capture,
    .emit = device_emit,
};

/* ---- refused ---- */

struct refusal {
    const char *prefix;         /* of the link */
    const char *what;
    const char *remedy;
};

static const struct refusal refusals[] = {
    { "anon_inode:[io_uring]", "an io_uring", "start it with io_uring switched off (node and libuv: UV_USE_IO_URING=0; python: remove uvloop)" },
    { "anon_inode:[userfaultfd]", "a userfaultfd", "end the program, or start it without its user-space paging" },
    { "anon_inode:[perf_event]", "a perf event", "stop the profiler" },
    { "anon_inode:bpf", "a BPF object", "end the program that loaded it" },
    { "anon_inode:[bpf", "a BPF object", "end the program that loaded it" },
    { "anon_inode:btf", "a BPF object", "end the program that loaded it" },
    { "anon_inode:landlock", "a landlock ruleset", "fork once the program has closed it" },
    { "anon_inode:[landlock", "a landlock ruleset", "fork once the program has closed it" },
    { "anon_inode:seccomp notify", "a seccomp listener", "end the supervising program" },
    { "anon_inode:[fscontext]", "a mount under construction", "fork once the mount is done" },
    { "anon_inode:kvm", "a virtual machine", "shut the virtual machine down" },
    { "anon_inode:sync_file", "a GPU fence", "start the program with software rendering (LIBGL_ALWAYS_SOFTWARE=1)" },
    { "anon_inode:dmabuf", "a GPU buffer", "start the program with software rendering (LIBGL_ALWAYS_SOFTWARE=1)" },
    { "/dmabuf:", "a GPU buffer", "start the program with software rendering (LIBGL_ALWAYS_SOFTWARE=1)" },
    { "/dev/dri/", "a GPU", "start the program with software rendering (LIBGL_ALWAYS_SOFTWARE=1)" },
    { "/dev/nvidia", "a GPU", "start the program with software rendering (LIBGL_ALWAYS_SOFTWARE=1)" },
    { "/dev/input/", "an input device", "end the program, or use the workspace's virtual input" },
    { "/dev/uinput", "an input device", "end the program, or use the workspace's virtual input" },
    { "/dev/snd/", "a sound card", "let the program use the sound server" },
    { "/dev/kvm", "KVM", "shut the virtual machine down" },
    { "/dev/loop", "a loop device", "unmount and detach it first" },
    { "/dev/net/tun", "a tunnel device", "end the VPN program" },
    { "cgroup:[", "a namespace descriptor", "close it before the fork" },
    { "time:[", "a namespace descriptor", "close it before the fork" },
};

/* Devices by their numbers, whatever the name by which they were opened. */
static const struct device_refusal {
    unsigned major, minor;      /* ANY_MINOR = all of them */
    const char *what, *remedy;
} device_refusals[] = {
    { 1, 11, "the kernel's log", "end the program that reads it" },
    { 1, 1, "the machine's memory", "end the program that uses it" },
    { 4, ANY_MINOR, "a console or serial line", "end the program, or let it use a pseudo terminal" },
    { 7, ANY_MINOR, "a virtual console's memory", "end the program that reads it" },
    { 10, 200, "a tunnel device", "end the VPN program" },
    { 10, 223, "an input device", "end the program, or use the workspace's virtual input" },
    { 10, 229, "a FUSE connection", "unmount the FUSE file system first" },
    { 10, 232, "KVM", "shut the virtual machine down" },
    { 10, 237, "the control of loop devices", "end the program that holds it" },
    { 13, ANY_MINOR, "an input device", "end the program, or use the workspace's virtual input" },
    { 29, ANY_MINOR, "a frame buffer", "start the program with software rendering (LIBGL_ALWAYS_SOFTWARE=1)" },
    { 81, ANY_MINOR, "a camera", "end the program that uses it" },
    { 108, ANY_MINOR, "a PPP connection", "end the VPN program" },
    { 116, ANY_MINOR, "a sound card", "let the program use the sound server" },
    { 189, ANY_MINOR, "a USB device", "end the program that uses it" },
    { 226, ANY_MINOR, "a GPU", "start the program with software rendering (LIBGL_ALWAYS_SOFTWARE=1)" },
};

static const struct device_refusal *refusal_of_device(const struct stat *st)
{
    if (!S_ISCHR(st->st_mode))
        return NULL;
    for (size_t i = 0; i < sizeof device_refusals / sizeof *device_refusals; i++) {
        const struct device_refusal *refusal = &device_refusals[i];
        if (refusal->major == major(st->st_rdev) && (refusal->minor == ANY_MINOR || refusal->minor == minor(st->st_rdev)))
            return refusal;
    }
    return NULL;
}

static const char *type_of(const struct stat *st)
{
    switch (st->st_mode & S_IFMT) {
    case S_IFCHR: return "a character device";
    case S_IFBLK: return "a block device";
    case S_IFSOCK: return "a socket of an unsupported family";
    default: return "an object of an unsupported type";
    }
}

static bool refused_match(const struct description *description)
{
    (void)description;
    return true;
}

static int refuse(struct world *world, const struct description *description, struct error *err)
{
    (void)world;
    const char *holder = description->holder ? process_label(description->holder) : "a queued message";
    if (S_ISCHR(description->st.st_mode) && description->st.st_rdev == makedev(MISC_MAJOR, FUSE_MINOR))    /* by whatever name */
        return fail(err, "unsupported", "%s serves a FUSE file system (fd %d); unmount it first", holder, description->holder_fd);
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *refusal = &refusals[i];
        if (strncmp(description->link, refusal->prefix, strlen(refusal->prefix)) == 0)
            return fail(err, "unsupported", "%s holds %s (fd %d); %s", holder, refusal->what, description->holder_fd, refusal->remedy);
    }
    const struct device_refusal *device = refusal_of_device(&description->st);
    if (device)
        return fail(err, "unsupported", "%s holds %s (fd %d: %.200s); %s", holder, device->what, description->holder_fd, description->link,
                    device->remedy);
    return fail(err, "unsupported", "%s holds %s (fd %d: %.200s); close it or end the program", holder, type_of(&description->st),
                description->holder_fd, description->link);
}

static int refused_capture(struct world *world, struct description *description, struct error *err)
{
    return refuse(world, description, err);
}

const struct fd_kind kind_refused = {
    .name = "unsupported object",
    .match = refused_match,
    .capture = refused_capture,
    .check = refuse,
};
