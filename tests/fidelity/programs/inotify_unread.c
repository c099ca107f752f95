/* Events that were not read: the source still has them, a branch is told that events were lost (IN_Q_OVERFLOW), and both hear of what comes. */
#include "fidelity.h"

#include <sys/inotify.h>
#include <sys/ioctl.h>

#define BASE "/tmp/fidelity-unread"

static void touch(const char *path)
{
    int fd = MUST(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    close(fd);
}

static void expect(int fd, int wd, uint32_t mask, const char *name)
{
    union { struct inotify_event event; char room[sizeof(struct inotify_event) + 16]; } got = { 0 };
    ssize_t size = read(fd, &got, sizeof(struct inotify_event) + (*name ? 16 : 0));
    CHECK(size >= (ssize_t)sizeof got.event, "no event, expected watch %d mask %#x \"%s\": %s", wd, mask, name, strerror(errno));
    CHECK(got.event.wd == wd && got.event.mask == mask && (!got.event.len || strcmp(got.event.name, name) == 0),
          "watch %d mask %#x \"%s\", expected %d %#x \"%s\"", got.event.wd, got.event.mask, got.event.len ? got.event.name : "", wd, mask, name);
}

int main(void)
{
    MUST(mkdir(BASE, 0755));
    int busy = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)), quiet = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
    int directory = MUST(inotify_add_watch(busy, BASE, IN_CREATE)), other = MUST(inotify_add_watch(quiet, BASE, IN_DELETE));
    touch(BASE "/one");
    touch(BASE "/two");

    fidelity_ready();
    fidelity_await_go();

    int bytes = 0;
    MUST(ioctl(busy, FIONREAD, &bytes));
    if (fidelity_in_branch()) {
        CHECK(bytes == sizeof(struct inotify_event), "%d bytes can be read, not one event", bytes);
        expect(busy, -1, IN_Q_OVERFLOW, "");
    } else {
        expect(busy, directory, IN_CREATE, "one");
        expect(busy, directory, IN_CREATE, "two");
    }
    CHECK(read(quiet, &bytes, sizeof bytes) == -1 && errno == EAGAIN, "the other instance has an event");
    touch(BASE "/three");
    expect(busy, directory, IN_CREATE, "three");
    MUST(unlink(BASE "/one"));
    expect(quiet, other, IN_DELETE, "one");
    MUST(ioctl(busy, FIONREAD, &bytes));
    CHECK(bytes == 0, "%d bytes are left", bytes);
    /* Bringing the overflow about takes a watch. */
    int expected = directory + (fidelity_in_branch() ? 2 : 1), next = MUST(inotify_add_watch(busy, "/proc", IN_CREATE));
    CHECK(next == expected, "the next number is %d, not %d", next, expected);
    fidelity_pass();
}
