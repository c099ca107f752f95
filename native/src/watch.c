#include "watch.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

/* Directories watched at once. The kernel's own limit is by user, so another program of the workspace may have used it up. */
#define MOST_DIRECTORIES 8192
#define CAME (IN_CREATE | IN_MOVED_TO)
#define OF_ITSELF (IN_DELETE_SELF | IN_MOVE_SELF)
#define EVENTS (CAME | OF_ITSELF | IN_MODIFY | IN_DELETE | IN_MOVED_FROM | IN_ATTRIB)

enum { EXIT_CANNOT_WATCH = 1 };

static int queue;
static const char *top;
static bool all_below;
/* By watch descriptor, which the kernel counts up and gives to nobody again: the path below `top`, "" for itself, NULL = not watched any more. */
static char **paths;
static int path_count;
static int directory_count;

static void __attribute__((noreturn)) give_up(const char *what, const char *why)
{
    fflush(stdout);
    fprintf(stderr, "cannot watch %s: %s\n", *what ? what : top, why);
    exit(EXIT_CANNOT_WATCH);
}

static char *joined(const char *directory, const char *name)
{
    char *path = malloc(strlen(directory) + strlen(name) + 2);
    if (!path)
        give_up(name, strerror(ENOMEM));
    strcpy(path, directory);
    if (*directory && *name)
        strcat(path, "/");
    return strcat(path, name);
}

static void tell(char kind, const char *path)
{
    putchar(kind);
    fputs(*path ? path : ".", stdout);
    putchar(0);
}

static void forget(int wd)
{
    free(paths[wd]);
    paths[wd] = NULL;
    directory_count--;
}

static void note(int wd, const char *path)
{
    if (wd >= path_count) {
        int wanted = wd * 2 + 64;
        char **grown = realloc(paths, (size_t)wanted * sizeof *paths);
        if (!grown)
            give_up(path, strerror(ENOMEM));
        memset(grown + path_count, 0, (size_t)(wanted - path_count) * sizeof *paths);
        paths = grown;
        path_count = wanted;
    }
    if (paths[wd])
        forget(wd);             /* the same directory under another name */
    paths[wd] = joined("", path);
    if (++directory_count > MOST_DIRECTORIES)
        give_up("", "too many directories are below it");
}

/* False for a directory that has gone meanwhile, is none, or may not be read: whoever made it knows. */
static bool add(const char *path)
{
    char *name = joined(top, path);
    int wd = inotify_add_watch(queue, name, EVENTS | IN_ONLYDIR | (*path ? IN_DONT_FOLLOW : 0));
    if (wd < 0 && (!*path || errno == ENOSPC || errno == ENOMEM))
        give_up(path, errno == ENOSPC ? "the user watches too much already (fs.inotify.max_user_watches)" : strerror(errno));
    free(name);
    if (wd >= 0)
        note(wd, path);
    return wd >= 0;
}

static bool is_directory(const char *path, const struct dirent *entry)
{
    if (entry->d_type != DT_UNKNOWN)
        return entry->d_type == DT_DIR;
    struct stat st;
    char *name = joined(top, path);
    bool found = lstat(name, &st) == 0 && S_ISDIR(st.st_mode);
    free(name);
    return found;
}

/* Watch what is below a directory that is watched already. `told`: nobody has heard of what lies in it. */
static void descend(const char *path, bool told)
{
    char *name = joined(top, path);
    DIR *directory = opendir(name);
    free(name);
    if (!directory)
        return;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        char *below = joined(path, entry->d_name);
        if (told)
            tell('C', below);
        if (is_directory(below, entry) && add(below))
            descend(below, told);
        free(below);
    }
    closedir(directory);
}

/* A directory was moved to where nobody asked about. */
static void leave(const char *path)
{
    size_t length = strlen(path);
    for (int wd = 0; wd < path_count; wd++)
        if (paths[wd] && strncmp(paths[wd], path, length) == 0 && (!paths[wd][length] || paths[wd][length] == '/'))
            inotify_rm_watch(queue, wd);        /* its IN_IGNORED comes */
}

static char kind_of(uint32_t mask)
{
    return mask & CAME ? 'C' : mask & IN_MODIFY ? 'W' : mask & IN_DELETE ? 'R' : mask & IN_MOVED_FROM ? 'N' : 'A';
}

/* False when the directory itself is gone. */
static bool take(const struct inotify_event *event)
{
    if (event->mask & IN_Q_OVERFLOW)
        give_up("", "more happens than can be told; events were lost");
    if (event->wd < 0 || event->wd >= path_count || !paths[event->wd])
        return true;
    const char *directory = paths[event->wd];
    if (event->mask & IN_IGNORED) {
        bool itself = !*directory;
        forget(event->wd);
        return !itself;
    }
    if (!event->len) {
        /* Of a directory below, the one above it tells. */
        if (!*directory)
            tell(event->mask & IN_DELETE_SELF ? 'R' : event->mask & IN_MOVE_SELF ? 'N' : kind_of(event->mask), "");
        return true;
    }
    char *path = joined(directory, event->name);
    tell(kind_of(event->mask), path);
    if (all_below && (event->mask & IN_ISDIR) && (event->mask & CAME) && add(path))
        descend(path, true);
    if (all_below && (event->mask & IN_ISDIR) && (event->mask & IN_MOVED_FROM))
        leave(path);
    free(path);
    return true;
}

int watch(const char *directory, bool below)
{
    static char buffer[1 << 16] __attribute__((aligned(__alignof__(struct inotify_event))));
    top = directory;
    all_below = below;
    queue = inotify_init1(IN_CLOEXEC);
    if (queue < 0)
        give_up("", strerror(errno));
    add("");
    if (below)
        descend("", false);
    tell('S', "");
    for (;;) {
        if (fflush(stdout) != 0)
            return 0;           /* nobody reads it any more */
        ssize_t got = read(queue, buffer, sizeof buffer);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            give_up("", strerror(errno));
        for (char *at = buffer; at < buffer + got;) {
            const struct inotify_event *event = (const struct inotify_event *)at;
            if (!take(event)) {
                fflush(stdout);
                return 0;
            }
            at += sizeof *event + event->len;
        }
    }
}
