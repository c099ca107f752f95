/*
 * The parsers of livefork, each by the function that the program itself calls. What reads /proc or asks the kernel is replaced at link time (--wrap), so no
 * parser has to be made public for this.
 */
#include "targets.h"
#include "registration.h"
#include "relay.h"

#include "cgroups.h"
#include "control.h"
#include "family.h"
#include "kinds/handle.h"
#include "kinds/inet.h"
#include "kinds/tty.h"
#include "locks.h"
#include "memory.h"
#include "memory_flags.h"
#include "mountinfo.h"
#include "namespace_contents.h"
#include "parts/parts.h"
#include "plan.h"
#include "proc.h"
#include "tasks.h"
#include "waits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- texts instead of files ---- */

static const uint8_t *rest;
static size_t rest_size;

static void set_input(const uint8_t *bytes, size_t size)
{
    rest = bytes;
    rest_size = size;
}

/* The next text in a block of exactly its size, so that whatever reads behind its end is noticed; NULL behind the last. */
static char *next_text(size_t *length)
{
    if (!rest)
        return NULL;
    const uint8_t *end = memchr(rest, 0, rest_size);
    *length = end ? (size_t)(end - rest) : rest_size;
    char *text = must_alloc(*length + 1);
    memcpy(text, rest, *length);
    rest_size -= *length + (end != NULL);
    rest = end ? end + 1 : NULL;
    return text;
}

static char *text_or_gone(struct error *err, size_t *length)
{
    size_t size = 0;
    char *text = next_text(&size);
    if (!text)
        fail(err, "gone", "it has ended");
    if (length)
        *length = size;
    return text;
}

char *__wrap_proc_read(struct error *err, size_t limit, size_t *length, const char *format, ...);
char *__wrap_proc_read(struct error *err, size_t limit, size_t *length, const char *format, ...)
{
    (void)format;
    char *text = text_or_gone(err, length);
    if (text && strlen(text) > limit)
        text[limit] = 0;
    if (text && length && *length > limit)
        *length = limit;
    return text;
}

char *__wrap_proc_link(struct error *err, const char *format, ...);
char *__wrap_proc_link(struct error *err, const char *format, ...)
{
    (void)format;
    return text_or_gone(err, NULL);
}

/* Asks the kernel inside the source's network namespace: no text that a parser reads. */
int __wrap_namespace_own_network_read(const struct world *world, struct error *err);
int __wrap_namespace_own_network_read(const struct world *world, struct error *err)
{
    (void)world;
    (void)err;
    return 0;
}

/* ---- a world of one process ---- */

struct scene {
    struct world world;
    struct namespaces namespaces;
    struct process process, parent;
    struct process *list[1];
    struct description description;
    struct fd_entry entry;
    struct error err;
};

static struct scene *new_scene(const uint8_t *bytes, size_t size)
{
    struct scene *scene = must_alloc(sizeof *scene);
    set_input(bytes, size);
    scene->list[0] = &scene->process;
    scene->world = (struct world){ .processes = scene->list, .process_count = 1, .source_pid = getpid(), .root = -1, .net_ns = -1, .ipc_ns = -1,
                                    .namespaces = &scene->namespaces };
    scene->process = (struct process){ .world = &scene->world, .pid = getpid(), .group_leader = getpid(), .mem = -1, .pidfd = -1 };
    scene->parent = scene->process;
    scene->process.parent = &scene->parent;
    scene->description = (struct description){ .holder = &scene->process, .holder_fd = 3, .local = -1, .link = must_copy_string("/some/file"),
                                               .st.st_mode = S_IFREG | 0600, .flags = O_RDWR };
    scene->entry = (struct fd_entry){ .fd = 3, .description = &scene->description };
    scene->process.fds = &scene->entry;
    scene->process.fd_count = 1;
    return scene;
}

static void run_maps(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    if (memory_read_map(&scene->process, &scene->err) == 0)
        memory_flags_read(&scene->process, &scene->err);
    free(scene);
}

static void run_zombie(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    scene->process.zombie = true;
    tasks_read(&scene->world, &scene->err);
    free(scene);
}

static void run_exit_signal(const uint8_t *bytes, size_t size)
{
    set_input(bytes, size);
    tasks_note_exit_signal(1);
}

static void run_mountinfo(const uint8_t *bytes, size_t size)
{
    size_t length;
    struct error err = { 0 };
    struct mount_table table = { 0 };
    set_input(bytes, size);
    char *text = next_text(&length);
    mount_table_parse(&table, text, &err);
    mount_table_free(&table);
    free(text);
}

static void run_locks(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    locks_read(&scene->world, &scene->err);
    /* locks.c keeps what it found and points into the scene */
}

static void run_timers(const uint8_t *bytes, size_t size)
{
    size_t length;
    struct scene *scene = new_scene(bytes, size);
    struct process_state state = { 0 };
    char *text = next_text(&length);
    timers_parse(&scene->process, text, &state, &scene->err);
    free(state.timers);
    free(text);
    free(scene);
}

static void run_id_maps(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    struct namespace namespace = { .kind = NAMESPACE_USER, .local = -1, .nested = true, .member = &scene->process };
    namespace_contents_read(&scene->world, &namespace, &scene->err);
    free(namespace.uids.ranges);
    free(namespace.gids.ranges);
    free(scene);
}

static void run_time_offsets(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    struct namespace namespace = { .kind = NAMESPACE_TIME, .local = -1, .nested = true, .member = &scene->process };
    scene->process.namespaces[NAMESPACE_TIME] = &namespace;
    namespace_contents_read(&scene->world, &namespace, &scene->err);
    free(namespace.offsets);
    free(scene);
}

/* The maps of a branch's restorer: they are kept by the module. */
static void run_restorer_maps(const uint8_t *bytes, size_t size)
{
    struct families families = { .count = 1 };
    struct scene *scene = new_scene(bytes, size);
    scene->world.families = &families;
    families_avoid(&scene->world, 1, &scene->err);
    free(scene);
}

static void run_numbers(const uint8_t *bytes, size_t size)
{
    size_t length;
    struct scene *scene = new_scene(bytes, size);
    struct pid_numbers numbers;
    char *text = next_text(&length);
    namespaces_numbers(&scene->world, proc_field(text, "NSpid"), &numbers);
    free(text);
    free(scene);
}

static void run_cgroups(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    size_t length;
    struct error err = { 0 };
    struct thread thread = { .process = &scene->process };
    char *text = next_text(&length);
    cgroups_parse(&thread, text, &err);
    free(thread.cgroups);
    free(text);
    free(scene);
}

static void run_handle(const uint8_t *bytes, size_t size)
{
    size_t length;
    struct handle handle = { 0 };
    struct error err = { 0 };
    bool hidden = false;
    struct scene *scene = new_scene(bytes, size);
    char *line = next_text(&length);
    if (handle_parse(line, &handle) == 0) {
        if (handle_is_of_overlay(&handle))
            free(handle_path_on_overlay(&scene->world, 1, &handle, &hidden, &err));
        else
            free(handle_path_on_mount(&scene->world, 1, 1, &handle, &err));
    }
    free(line);
    free(scene);
}

/* A thread's syscall, sched and stat; when it has been found to wait, its sched once more. */
static void run_waits(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    struct thread thread = { .process = &scene->process, .tid = getpid() };
    waits_note(getpid(), thread.tid);
    waits_began(&thread);
    free(scene);
}

/* The stat lines of a session's leader. */
static void run_sessions(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    scene->process.ns_session = scene->process.ns_pid = 1;
    tty_sessions_find(&scene->world, NULL, 0, &scene->err);
    free(scene);
}

/* ---- kinds of descriptors ---- */

static void capture_kind(const uint8_t *bytes, size_t size, const char *link)
{
    struct scene *scene = new_scene(bytes, size);
    free(scene->description.link);
    scene->description.link = must_copy_string(link);
    scene->description.st.st_mode = 0600;
    for (int i = 0; fd_kinds[i]; i++) {
        if (fd_kinds[i]->match(&scene->description)) {
            if (fd_kinds[i]->capture)
                fd_kinds[i]->capture(&scene->world, &scene->description, &scene->err);
            break;
        }
    }
    free(scene);
}

static void run_epoll(const uint8_t *bytes, size_t size) { capture_kind(bytes, size, "anon_inode:[eventpoll]"); }
static void run_eventfd(const uint8_t *bytes, size_t size) { capture_kind(bytes, size, "anon_inode:[eventfd]"); }
static void run_signalfd(const uint8_t *bytes, size_t size) { capture_kind(bytes, size, "anon_inode:[signalfd]"); }
static void run_timerfd(const uint8_t *bytes, size_t size) { capture_kind(bytes, size, "anon_inode:[timerfd]"); }
static void run_pidfd(const uint8_t *bytes, size_t size) { capture_kind(bytes, size, "anon_inode:[pidfd]"); }
static void run_inotify(const uint8_t *bytes, size_t size) { capture_kind(bytes, size, "anon_inode:inotify"); }
static void run_fanotify(const uint8_t *bytes, size_t size) { capture_kind(bytes, size, "anon_inode:[fanotify]"); }

/* Tables of sockets are read once a namespace: each run has one of its own. */
static uint64_t namespace_count;

static void run_raw(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    struct inet_socket socket = { .description = &scene->description, .domain = size & 1 ? AF_INET : AF_INET6, .type = SOCK_RAW,
                                  .namespace = ++namespace_count };
    scene->description.st.st_ino = 7;
    raw_peer_read(&socket);
}

static void run_multicast(const uint8_t *bytes, size_t size)
{
    struct scene *scene = new_scene(bytes, size);
    struct inet_socket socket = { .description = &scene->description, .label = "a socket", .domain = size & 1 ? AF_INET : AF_INET6,
                                  .type = SOCK_DGRAM, .namespace = ++namespace_count };
    multicast_read(&socket, &scene->err);
    free(scene);
}

/* ---- requests ---- */

/* One packet of the engine, then its end. */
static void run_control(const uint8_t *bytes, size_t size)
{
    int ends[2];
    struct error err = { 0 };
    struct branch branch = { .id = "ws-4", .root = -1 };
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0)
        abort();
    struct control control = { .socket = ends[0] };
    if (send(ends[1], bytes, size, MSG_NOSIGNAL) < 0)
        abort();
    close(ends[1]);
    control_await_roots(&control, &branch, 1, &err);
    free(json_string(err.message));
    close(ends[0]);
}

static void run_json(const uint8_t *bytes, size_t size)
{
    size_t length;
    set_input(bytes, size);
    char *text = next_text(&length);
    free(json_string(text));
    free(text);
}

const struct target targets[] = {
    { "maps", run_maps, 0 }, { "zombie", run_zombie, 0 }, { "exit_signal", run_exit_signal, 4000 },
    { "mountinfo", run_mountinfo, 0 }, { "locks", run_locks, 2000 }, { "timers", run_timers, 0 },
    { "id_maps", run_id_maps, 0 }, { "numbers", run_numbers, 0 }, { "cgroups", run_cgroups, 0 },
    { "handle", run_handle, 0 }, { "epoll", run_epoll, 0 }, { "eventfd", run_eventfd, 0 },
    { "signalfd", run_signalfd, 0 }, { "timerfd", run_timerfd, 0 }, { "pidfd", run_pidfd, 0 },
    { "inotify", run_inotify, 0 }, { "fanotify", run_fanotify, 0 }, { "waits", run_waits, 0 },
    { "sessions", run_sessions, 0 }, { "raw", run_raw, 4000 }, { "multicast", run_multicast, 0 },
    { "time_offsets", run_time_offsets, 0 }, { "restorer_maps", run_restorer_maps, 100 }, { "registration", run_registration, 0 },
    { "control", run_control, 0 }, { "json", run_json, 0 }, { "frames", run_frames, 0 }, { "relay", run_relay, 0 },
    { 0 },
};

const struct target *target_by_name(const char *name)
{
    for (const struct target *target = targets; target->name; target++)
        if (strcmp(target->name, name) == 0)
            return target;
    return NULL;
}
