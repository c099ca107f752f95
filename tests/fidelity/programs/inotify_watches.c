/* inotify on the overlay: numbers and masks; lower and new files, a renamed one, directories, a removed one, /dev/shm, gaps in the numbers. */
#include "fidelity.h"

#include <sys/inotify.h>

#define BASE "/tmp/fidelity-inotify"
#define SHM "/dev/shm/inotify-watches"  /* other programs use /dev/shm itself */

static int watch(int fd, const char *path, uint32_t mask)
{
    return MUST(inotify_add_watch(fd, path, mask));
}

static void touch(const char *path)
{
    int fd = MUST(open(path, O_WRONLY | O_CREAT, 0644));
    MUST((int)write(fd, "x", 1));
    close(fd);
}

/* Directories in which other programs make files, too: there only files of this name are ours. */
#define OURS "fidelity-inotify-new"
static int shared_directories[2];

static bool somebody_elses(const struct inotify_event *event)
{
    for (int i = 0; i < 2; i++)
        if (event->wd == shared_directories[i])
            return strcmp(event->len ? event->name : "", OURS) != 0;
    return false;
}

static char queue[8192];
static ssize_t used;

static void forget_first(void)
{
    const struct inotify_event *event = (void *)queue;
    ssize_t size = (ssize_t)(sizeof *event + event->len);
    used -= size;
    memmove(queue, queue + size, (size_t)used);
}

/* The next event that concerns us stands first in the queue; false = there is none. */
static bool next_event(int fd)
{
    for (;;) {
        if (used == 0)
            used = read(fd, queue, sizeof queue);
        if (used <= 0) {
            used = 0;
            return false;
        }
        if (!somebody_elses((void *)queue))
            return true;
        forget_first();
    }
}

/* The next event must be this one. */
static void expect(int fd, int wd, uint32_t mask, const char *name)
{
    union { struct inotify_event event; char room[4096]; } got;
    CHECK(next_event(fd), "no event, expected watch %d mask %#x %s: %s", wd, mask, name, strerror(errno));
    struct inotify_event *event = (void *)queue;
    size_t size = sizeof *event + event->len;
    memcpy(&got, queue, size);
    CHECK(got.event.wd == wd && got.event.mask == mask && strcmp(event->len ? got.event.name : "", name) == 0, "watch %d mask %#x \"%s\", expected %d %#x \"%s\"",
          got.event.wd, got.event.mask, event->len ? got.event.name : "", wd, mask, name);
    forget_first();
}

int main(void)
{
    int fd = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    MUST(mkdir(BASE, 0755));
    MUST(mkdir(BASE "/deep", 0755));
    MUST(mkdir(SHM, 0755));
    touch(BASE "/file");
    touch(BASE "/before");
    touch(BASE "/short-lived");
    int directory = watch(fd, BASE, IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR);
    for (int i = 0; i < 5; i++)
        MUST(inotify_rm_watch(fd, watch(fd, "/", IN_DELETE)));
    int file = watch(fd, BASE "/file", IN_MODIFY | IN_CLOSE_WRITE | IN_EXCL_UNLINK);
    int renamed = watch(fd, BASE "/before", IN_MODIFY);
    int deep = watch(fd, BASE "/deep", IN_CREATE | IN_ONESHOT);
    int lower = watch(fd, "/bin", IN_CREATE), lower_file = watch(fd, "/bin/busybox", IN_ATTRIB);
    int root = watch(fd, "/", IN_CREATE | IN_ONLYDIR), shm = watch(fd, SHM, IN_CREATE);
    memcpy(shared_directories, (int[2]){ lower, root }, sizeof shared_directories);
    int held = MUST(open(BASE "/short-lived", O_RDWR));
    int nameless = watch(fd, BASE "/short-lived", IN_MODIFY);
    MUST(unlink(BASE "/short-lived"));
    MUST(rename(BASE "/before", BASE "/after"));
    int last = watch(fd, "/tmp", IN_MOVE_SELF);
    char drain[8192];
    while (read(fd, drain, sizeof drain) > 0)
        ;

    fidelity_ready();
    fidelity_await_go();

    /* What another program did in a shared directory and nobody had read yet is told of in a branch by this one event, which took a watch to make. */
    int lost = 0;
    while (fidelity_in_branch() && next_event(fd) && ((struct inotify_event *)queue)->mask == IN_Q_OVERFLOW) {
        lost++;
        forget_first();
    }
    CHECK(lost <= 1, "%d events of lost ones", lost);
    CHECK(!next_event(fd), "there are events that nobody caused: wd %d mask %#x", ((struct inotify_event *)queue)->wd,
          ((struct inotify_event *)queue)->mask);
    touch(BASE "/new");
    expect(fd, directory, IN_CREATE, "new");
    touch(BASE "/file");
    expect(fd, file, IN_MODIFY, "");
    expect(fd, file, IN_CLOSE_WRITE, "");
    touch(BASE "/after");
    expect(fd, renamed, IN_MODIFY, "");
    touch(BASE "/deep/one");
    expect(fd, deep, IN_CREATE, "one");
    expect(fd, deep, IN_IGNORED, "");
    touch("/bin/" OURS);
    expect(fd, lower, IN_CREATE, OURS);
    MUST(chmod("/bin/busybox", 0755));
    expect(fd, lower_file, IN_ATTRIB, "");
    touch("/" OURS);
    expect(fd, root, IN_CREATE, OURS);
    touch(SHM "/" OURS);
    expect(fd, shm, IN_CREATE, OURS);
    MUST((int)write(held, "still", 5));
    expect(fd, nameless, IN_MODIFY, "");
    int next = watch(fd, "/proc", IN_CREATE);
    CHECK(next == last + 1 + lost, "the next number is %d, not %d", next, last + 1 + lost);
    close(held);
    fidelity_pass();
}
