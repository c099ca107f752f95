/*
 * Working directory, root and umask of a thread that has its own (unshare with CLONE_FS); all others share those of their process. A thread with a descriptor
 * table of its own (unshare with CLONE_FILES) is refused: a process of a branch has one.
 */
#include "parts.h"
#include "../files.h"
#include "../mounts.h"
#include "../namespaces.h"
#include "../proc.h"
#include "../sharing.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

struct place {
    char *cwd, *root;
    int umask;
};

/* The directory behind a link of the thread's must be where its name leads: threads are made when nothing else tells directories apart. */
static char *read_directory(const struct thread *thread, const char *name, struct error *err)
{
    const struct process *process = thread->process;
    struct stat st;
    char link[64];
    snprintf(link, sizeof link, "/proc/%d/task/%d/%s", process->pid, thread->tid, name);
    char *path = proc_link(err, "%s", link);
    if (!path || stat(link, &st) < 0) {
        free(path);
        fail_errno(err, "%s: cannot look at %s of its thread (host id %d)", process_label(process), name, thread->tid);
        return NULL;
    }
    bool before = process->world->root < 0;     /* preflight: the rest is found out when nobody moves any more */
    if (before ? st.st_nlink > 0 : files_path_leads_to(process->world, mounts_of_process(process), path, st.st_ino, link))
        return path;
    fail(err, "unsupported", "%s has a thread with a %s of its own (unshare with CLONE_FS) that was removed or is hidden, %.200s, which cannot be forked; let it "
         "go to another directory", process_label(process), strcmp(name, "cwd") == 0 ? "working directory" : "root", path);
    free(path);
    return NULL;
}

static int read_umask(struct thread *thread, struct error *err)
{
    AUTO_FREE char *text = proc_read(err, 1 << 20, NULL, "/proc/%d/task/%d/status", thread->process->pid, thread->tid);
    const char *mask = text ? proc_field(text, "Umask") : NULL;
    if (!mask)
        return text ? fail(err, "internal", "%s: the umask of its thread (host id %d) cannot be read", process_label(thread->process), thread->tid) : -1;
    thread->place->umask = (int)strtol(mask, NULL, 8);
    return 0;
}

/* Threads that are about to end have nothing any more, and so share it: what they have is looked at first. */
static int read_place(struct thread *thread, struct error *err)
{
    struct process *process = thread->process;
    struct place *place = must_alloc(sizeof *place);
    if (!(place->cwd = read_directory(thread, "cwd", err)) || !(place->root = read_directory(thread, "root", err)))
        return -1;
    for (const struct thread *other = process->threads + 1; other < thread; other++)
        if (other->place && sharing_directories(other->tid, thread->tid))
            return fail(err, "unsupported", "%s has two threads that share a working directory of their own (unshare with CLONE_FS), which cannot be "
                        "forked; end one of them", process_label(process));
    if (process->shares_fs)
        return fail(err, "unsupported", "%s shares its working directory with its parent, but a thread of it has its own (unshare with CLONE_FS), which "
                    "cannot be forked; end the thread", process_label(process));
    thread->place = place;
    return read_umask(thread, err);
}

static int refuse_own_table(const struct process *process, struct error *err)
{
    return fail(err, "unsupported", "%s has a thread with a descriptor table of its own (unshare with CLONE_FILES), which cannot be forked; end the thread",
                process_label(process));
}

/* One that is about to end shares nothing any more, and has no descriptors. */
static bool has_descriptors(pid_t pid, pid_t tid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task/%d/fd", pid, tid);
    DIR *directory = opendir(path);
    bool any = false;
    for (struct dirent *entry; directory && !any && (entry = readdir(directory));)
        any = entry->d_name[0] != '.';
    if (directory)
        closedir(directory);
    return any;
}

/* Whether the thread that all others are compared with may have ended since it was chosen: then none shares anything with it, and what holds is found out
 * when nobody moves any more (places_read). It gives its descriptors back before its directories. */
static bool ending(const struct process *process)
{
    return !has_descriptors(process->pid, process->pid);
}

/* Only with rights that a workspace's root has in a user namespace made inside. A process of a branch lives in one of each kind. */
static void refuse_own_namespace(const struct process *process, pid_t tid, struct error *err)
{
    const struct namespace *user = process->namespaces[NAMESPACE_USER];
    const char *kind = user && user->nested ? namespace_of_thread_apart(process, tid) : NULL;
    if (kind)
        fail(err, "unsupported", "%s has a thread in a namespace of its own (%s), which cannot be forked; end the thread", process_label(process), kind);
}

int places_check(struct process *process, struct error *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", process->pid);
    DIR *tasks = opendir(path);
    struct thread *threads = NULL;
    struct process looked_at = *process;
    looked_at.threads = threads = must_alloc(sizeof *threads);
    threads[0] = (struct thread){ .process = &looked_at, .tid = process->pid };     /* alive, unlike perhaps the first */
    looked_at.thread_count = 1;
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        pid_t tid = (pid_t)atoi(entry->d_name);
        if (tid <= 0 || tid == process->group_leader)
            continue;
        if (!err->code && !sharing_descriptors(process->pid, tid) && has_descriptors(process->pid, tid) && !ending(process))
            refuse_own_table(process, err);
        if (!err->code)
            refuse_own_namespace(process, tid, err);
        if (sharing_directories(process->pid, tid))
            continue;           /* nearly all */
        threads = must_grow(threads, (size_t)(looked_at.thread_count + 1) * sizeof *threads);
        threads[looked_at.thread_count++] = (struct thread){ .process = &looked_at, .tid = tid };
    }
    if (tasks)
        closedir(tasks);
    looked_at.threads = threads;
    int status = err->code ? -1 : 0;
    for (int i = 1; i < looked_at.thread_count && status == 0; i++) {
        struct error gone = { 0 };
        if (read_place(&threads[i], &gone) < 0 && strcmp(gone.code, "unsupported") == 0 && !ending(process)) {
            *err = gone;
            status = -1;
        }
    }
    free(threads);
    return status;
}

int places_read(struct world *world, struct error *err)
{
    for (int i = 0; i < world->process_count; i++) {
        struct process *process = world->processes[i];
        for (int k = 1; !process->zombie && k < process->thread_count; k++) {
            if (!sharing_descriptors(process->threads[0].tid, process->threads[k].tid))
                return refuse_own_table(process, err);
            if (!sharing_directories(process->threads[0].tid, process->threads[k].tid) && read_place(&process->threads[k], err) < 0)
                return -1;
        }
    }
    return 0;
}

static int place_emit(struct batch *batch, const struct thread *thread, struct error *err)
{
    (void)err;
    const struct place *place = thread->place;
    char what[320];
    if (!place)
        return 0;
    snprintf(what, sizeof what, "%s: working directory %.100s and root %.100s of thread %d", process_label(thread->process), place->cwd, place->root,
             thread->ns_tid);
    EMIT(batch, what, SYS_unshare, CLONE_FS);
    EMIT(batch, what, SYS_umask, (uint64_t)place->umask);
    EMIT(batch, what, SYS_chdir, plan_string(batch->plan, place->cwd));
    if (strcmp(place->root, "/") != 0)
        EMIT(batch, what, SYS_chroot, plan_string(batch->plan, place->root));
    return 0;
}

const struct part part_place = { .name = "own directories", .emit = place_emit };
