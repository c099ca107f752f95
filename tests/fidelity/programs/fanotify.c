/* fanotify groups as anybody may make them: marks of each sort, on files and directories, events after the fork, and the word for events lost in it. */
#include "fidelity.h"

#include <sys/fanotify.h>

#define DIRECTORY FIDELITY_DIRECTORY "fanotify"
#define NAMES (FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_REPORT_DIR_FID | FAN_REPORT_NAME | FAN_CLOEXEC | FAN_NONBLOCK)
#ifndef FAN_MARK_EVICTABLE
#define FAN_MARK_EVICTABLE 0x200
#define FAN_MARK_IGNORE 0x400
#endif

static void touch(const char *path)
{
    int fd = MUST(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    MUST(write(fd, "x", 1));
    close(fd);
}

static void mark(int group, unsigned flags, uint64_t mask, const char *path)
{
    MUST(fanotify_mark(group, FAN_MARK_ADD | flags, mask, AT_FDCWD, path));
}

/* The group and its marks as the kernel tells them, without the file systems, which are a branch's own. */
static char *marks(int group)
{
    static char told[4][4096];
    static int turn;
    char path[64], *to = told[turn++ % 4];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", group);
    char *text = fidelity_file(path), *from = strstr(text, "fanotify flags:");
    CHECK(from, "no group: %s", text);
    size_t used = 0;
    for (char *line = strtok(from, "\n"); line; line = strtok(NULL, "\n")) {
        unsigned long inode = 0;
        unsigned flags = 0, mask = 0, ignored = 0;
        if (sscanf(line, "fanotify ino:%lx sdev:%*x mflags:%x mask:%x ignored_mask:%x", &inode, &flags, &mask, &ignored) == 4)
            used += (size_t)sprintf(to + used, "%lx %x %x %x; ", inode, flags, mask, ignored);
        else
            used += (size_t)sprintf(to + used, "%s; ", line);
    }
    return to;
}

/* All masks of the events that are there, or-ed. */
static uint64_t masks(int group, int *events)
{
    char buffer[8192];
    uint64_t sum = 0;
    ssize_t got;
    *events = 0;
    while ((got = read(group, buffer, sizeof buffer)) > 0)
        for (struct fanotify_event_metadata *event = (void *)buffer; FAN_EVENT_OK(event, got); event = FAN_EVENT_NEXT(event, got)) {
            sum |= event->mask;
            ++*events;
        }
    CHECK(errno == EAGAIN, "read: %s", strerror(errno));
    return sum;
}

int main(void)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    mkdir(DIRECTORY, 0777);
    mkdir("/dev/shm/fanotify", 0777);
    touch(DIRECTORY "/a");
    touch(DIRECTORY "/ignored");
    touch(DIRECTORY "/gone");
    int names = MUST(fanotify_init(NAMES, O_RDONLY)), files = MUST(fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_NONBLOCK, O_RDWR));
    int unread = MUST(fanotify_init(NAMES, O_RDONLY)), blocking = MUST(fanotify_init(FAN_REPORT_FID | FAN_REPORT_DIR_FID, O_RDONLY));
    mark(names, 0, FAN_CREATE | FAN_DELETE | FAN_ONDIR | FAN_EVENT_ON_CHILD, DIRECTORY);
    mark(names, 0, FAN_MODIFY, DIRECTORY "/a");
    mark(names, FAN_MARK_IGNORED_MASK | FAN_MARK_IGNORED_SURV_MODIFY, FAN_MODIFY, DIRECTORY "/ignored");
    mark(names, 0, FAN_CREATE, "/dev/shm/fanotify");
    mark(files, FAN_MARK_EVICTABLE, FAN_CLOSE_WRITE, DIRECTORY "/a");
    mark(files, FAN_MARK_IGNORE | FAN_MARK_IGNORED_SURV_MODIFY, FAN_OPEN, DIRECTORY "/ignored");
    mark(files, 0, FAN_OPEN | FAN_MODIFY, DIRECTORY "/ignored");
    int kept = MUST(open(DIRECTORY "/gone", O_RDWR | O_CLOEXEC));
    mark(files, 0, FAN_MODIFY, DIRECTORY "/gone");
    MUST(unlink(DIRECTORY "/gone"));
    mark(unread, 0, FAN_CREATE | FAN_DELETE, DIRECTORY);
    mark(blocking, FAN_MARK_ONLYDIR, FAN_CREATE, DIRECTORY);
    touch(DIRECTORY "/b");
    int events;
    masks(names, &events);
    char *of_names = marks(names), *of_files = marks(files);

    fidelity_ready();
    fidelity_await_go();

    CHECK(strcmp(marks(names), of_names) == 0, "other marks: %s instead of %s", marks(names), of_names);
    if (!fidelity_in_branch())
        CHECK(strcmp(marks(files), of_files) == 0, "other marks: %s instead of %s", marks(files), of_files);
    CHECK(masks(names, &events) == 0 && events == 0, "%d events of the fork itself", events);
    uint64_t lost = masks(unread, &events);
    CHECK(lost == (fidelity_in_branch() ? FAN_Q_OVERFLOW : FAN_CREATE) && events == 1, "events 0x%lx, %d of them", (unsigned long)lost, events);
    CHECK(access("/dev/shm/.tclone-fanotify", F_OK) < 0, "what the fork made is left");
    CHECK(fcntl(unread, F_GETFL) & O_NONBLOCK && !(fcntl(blocking, F_GETFL) & O_NONBLOCK), "a group's flags");

    touch(DIRECTORY "/c");
    CHECK(masks(names, &events) == FAN_CREATE && events == 1, "%d events of a new file", events);
    CHECK(masks(unread, &events) == FAN_CREATE && events == 1, "%d events of a new file, after those lost", events);
    touch(DIRECTORY "/a");
    CHECK(masks(names, &events) == FAN_MODIFY && masks(files, &events) == FAN_CLOSE_WRITE, "a change of a file is not told");
    touch(DIRECTORY "/ignored");
    CHECK(masks(files, &events) == FAN_MODIFY, "the ignored mask was lost");
    MUST(write(kept, "y", 1));
    CHECK(masks(files, &events) == FAN_MODIFY, "a change of a file without a name is not told");
    touch("/dev/shm/fanotify/d");
    CHECK(masks(names, &events) == FAN_CREATE, "a new file in shared memory is not told");
    fidelity_pass();
}
