/* FIFOs that their names do not lead to: a mount of a namespace made inside hides one, another was opened by a name of two that it has lost. */
#include "mounts.h"

#define HERE "/tmp/fidelity-hidden-fifos"
#define HIDDEN HERE "/below/fifo"

static int open_fifo(const char *path, const char *content)
{
    MUST(mkfifo(path, 0640));
    int fd = MUST(open(path, O_RDWR | O_NONBLOCK));
    MUST((int)write(fd, content, strlen(content)));
    return fd;
}

static void check_content(int fd, const char *content, const char *what)
{
    char text[64] = "";
    ssize_t length = read(fd, text, sizeof text - 1);
    CHECK(length == (ssize_t)strlen(content) && strcmp(text, content) == 0, "%s holds '%s'", what, text);
    CHECK(read(fd, text, 1) < 0 && errno == EAGAIN, "%s holds more", what);
    MUST((int)write(fd, "on", 2));
    CHECK(read(fd, text, 2) == 2, "%s takes nothing any more", what);
}

int main(void)
{
    struct stat st;
    enter_namespaces(0);
    MUST(mkdir(HERE, 0755));
    MUST(mkdir(HERE "/below", 0755));
    int hidden = open_fifo(HIDDEN, "under a mount"), linked = open_fifo(HERE "/first", "by its first name");
    MUST(link(HERE "/first", HERE "/second"));
    MUST(unlink(HERE "/first"));
    MUST(mount("cover", HERE "/below", "tmpfs", 0, NULL));
    fidelity_ready();
    fidelity_await_go();
    CHECK(stat(HIDDEN, &st) < 0 && errno == ENOENT, "the hidden FIFO can be seen");
    check_content(hidden, "under a mount", "the hidden FIFO");
    check_content(linked, "by its first name", "the FIFO that lost a name");
    MUST(fstat(hidden, &st));
    CHECK(S_ISFIFO(st.st_mode) && (st.st_mode & 07777) == 0640, "the hidden FIFO's mode is %o", st.st_mode);
    MUST(umount(HERE "/below"));
    CHECK(stat(HIDDEN, &st) == 0 && S_ISFIFO(st.st_mode), "there is no FIFO where one was hidden");
    CHECK(stat(HERE "/second", &st) == 0 && access(HERE "/first", F_OK) < 0, "the names of the other FIFO differ");
    fidelity_pass();
}
