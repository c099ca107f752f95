/*
 * inotify and fanotify where mounts made inside lead: through bind mounts of a directory and of a single file of the root, in a tmpfs mounted inside, on
 * a file that lost its name since but is open, on the root of a mount. Watch numbers with gaps.
 */
#include "mounts.h"

#include <sys/fanotify.h>
#include <sys/inotify.h>

#define HERE FIDELITY_DIRECTORY "bound"
#define PLACES 6

static const struct { const char *through, *real; bool directory; } places[PLACES] = {
    { HERE "/view", HERE "/real", true },               /* through a bind mount of a directory: its root */
    { HERE "/view/inner", HERE "/real/inner", true },
    { HERE "/view/file", HERE "/real/file", false },
    { HERE "/single", HERE "/alone", false },           /* through a bind mount of a file */
    { HERE "/memory", HERE "/memory", true },           /* a tmpfs, its root */
    { HERE "/memory/file", HERE "/memory/file", false },
};

static void make(void)
{
    static const char *const directories[] = { HERE, HERE "/real", HERE "/real/inner", HERE "/view", HERE "/memory" };
    static const char *const files[] = { HERE "/real/file", HERE "/real/gone", HERE "/alone", HERE "/single" };
    for (size_t i = 0; i < sizeof directories / sizeof *directories; i++)
        MUST(mkdir(directories[i], 0777));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        make_file(files[i], "", 0600);
    enter_namespaces(0);
    MUST(mount(HERE "/real", HERE "/view", NULL, MS_BIND, NULL));
    MUST(mount(HERE "/alone", HERE "/single", NULL, MS_BIND, NULL));
    MUST(mount("memory", HERE "/memory", "tmpfs", 0, NULL));
    make_file(HERE "/memory/file", "", 0600);
}

/* A change that each watch tells: a new name in a directory, more bytes in a file. */
static void change(int place, const char *suffix)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s%s", places[place].real, fidelity_in_branch() ? "branch" : "source", suffix);
    int fd = MUST(places[place].directory ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : open(places[place].real, O_WRONLY | O_APPEND | O_CLOEXEC));
    if (!places[place].directory)
        MUST(write(fd, "x", 1));
    close(fd);
}

static void expect_inotify(int watch, int number, uint32_t mask)
{
    union { struct inotify_event event; char room[512]; } told;
    ssize_t got = read(watch, &told, sizeof told);
    CHECK(got >= (ssize_t)sizeof told.event && told.event.wd == number && (told.event.mask & ~(unsigned)IN_ISDIR) == mask,
          "watch %d tells %zd bytes: watch %d, mask %x", number, got, got > 0 ? told.event.wd : 0, got > 0 ? told.event.mask : 0);
    CHECK(read(watch, &told, sizeof told) < 0 && errno == EAGAIN, "watch %d tells more than once", number);
}

static void expect_fanotify(int group, uint64_t mask, const char *what)
{
    union { struct fanotify_event_metadata event; char room[1024]; } told;
    ssize_t got = read(group, &told, sizeof told);
    CHECK(got > 0 && told.event.mask == mask, "%s: %zd bytes, mask %llx", what, got, got > 0 ? (unsigned long long)told.event.mask : 0);
}

int main(void)
{
    make();
    int watch = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC)), group = MUST(fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_NONBLOCK, O_RDONLY));
    int numbers[PLACES];
    for (int i = 0; i < PLACES; i++) {
        int unused = MUST(inotify_add_watch(watch, HERE, IN_ATTRIB));
        numbers[i] = MUST(inotify_add_watch(watch, places[i].through, places[i].directory ? IN_CREATE : IN_MODIFY));
        MUST(inotify_rm_watch(watch, unused));
        MUST(fanotify_mark(group, FAN_MARK_ADD, places[i].directory ? FAN_CREATE : FAN_MODIFY, AT_FDCWD, places[i].through));
    }
    int gone = MUST(open(HERE "/view/gone", O_WRONLY | O_CLOEXEC)), of_gone = MUST(inotify_add_watch(watch, HERE "/view/gone", IN_MODIFY));
    MUST(fanotify_mark(group, FAN_MARK_ADD, FAN_MODIFY, AT_FDCWD, HERE "/view/gone"));
    MUST(unlink(HERE "/real/gone"));
    char left[4096];
    while (read(watch, left, sizeof left) > 0)          /* IN_IGNORED of what was taken away */
        ;

    fidelity_ready();
    fidelity_await_go();
    for (int i = 0; i < PLACES; i++) {
        change(i, "");
        expect_inotify(watch, numbers[i], places[i].directory ? IN_CREATE : IN_MODIFY);
        expect_fanotify(group, places[i].directory ? FAN_CREATE : FAN_MODIFY, places[i].through);
    }
    MUST(write(gone, "x", 1));
    expect_inotify(watch, of_gone, IN_MODIFY);
    expect_fanotify(group, FAN_MODIFY, "a file without a name");
    fidelity_pass();
}
