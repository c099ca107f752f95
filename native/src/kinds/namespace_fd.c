/* Descriptors of namespaces (/proc/PID/ns/…), which keep a namespace alive that nobody lives in any more. */
#include "../descriptors.h"
#include "../files.h"
#include "../namespace_contents.h"
#include "../namespaces.h"
#include "../plan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#define NSFS_MAGIC_NUMBER 0x6e736673

static bool kind_of(const struct description *description, enum namespace_kind *kind)
{
    for (*kind = 0; *kind < NAMESPACE_KINDS; ++*kind) {
        const char *name = namespace_name(*kind);
        size_t length = strlen(name);
        if (strncmp(description->link, name, length) == 0 && strncmp(description->link + length, ":[", 2) == 0)
            return true;
    }
    return false;
}

static bool match(const struct description *description)
{
    enum namespace_kind kind;
    struct statfs fs;
    return kind_of(description, &kind) && fstatfs(description->local, &fs) == 0 && fs.f_type == NSFS_MAGIC_NUMBER;
}

static int capture(struct world *world, struct description *description, struct error *err)
{
    enum namespace_kind kind;
    kind_of(description, &kind);
    struct namespace *namespace = namespace_of_descriptor(world, description->local, kind, err);
    if (!namespace)
        return -1;
    if (namespace->nested && !namespace->member) {
        if (kind == NAMESPACE_PID)
            return fail(err, "unsupported", "%s keeps a pid namespace in which nobody lives any more, which cannot be forked; close it",
                        description_label(description));
        if (namespace_contents_read(world, namespace, err) < 0)
            return -1;
    }
    description->data = namespace;
    return 0;
}

/* By pid 1 once the process tree exists, and with it every pid namespace. */
static int emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    (void)err;
    const struct namespace *namespace = description->data;
    if (stage != STAGE_MAKE)
        return 0;
    const char *what = description_label(description);
    if (namespace->aux >= 0) {
        EMIT(plan_late(plan), what, SYS_dup3, aux_slot(plan->world, namespace->aux), SLOT(plan, description), 0);
        return 0;
    }
    char path[32];
    snprintf(path, sizeof path, "/proc/self/ns/%s", namespace_name(namespace->kind));
    EMIT(plan_late(plan), what, SYS_openat, (uint64_t)AT_FDCWD, plan_string(plan, path), O_RDONLY | O_CLOEXEC);
    emit_to_slot(plan_late(plan), description, what);
    return 0;
}

const struct fd_kind kind_namespace = { .name = "namespace", .match = match, .capture = capture, .emit = emit };
