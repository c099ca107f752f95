/* Pipes: content and its order, capacity, packet mode, end of file and EPIPE by who still holds an end; FIFOs, also unlinked ones. */
#include "fidelity.h"

#include <sys/ioctl.h>

static void fill(int fd, size_t size)
{
    char block[1000];
    for (size_t i = 0; i < size; i += sizeof block) {
        for (size_t k = 0; k < sizeof block; k++)
            block[k] = (char)((i + k) % 251);
        MUST((int)write(fd, block, sizeof block));
    }
}

static void check_content(int fd, size_t size)
{
    char block[1000];
    for (size_t i = 0; i < size; i += sizeof block) {
        CHECK(read(fd, block, sizeof block) == sizeof block, "short read at %zu", i);
        for (size_t k = 0; k < sizeof block; k++)
            CHECK(block[k] == (char)((i + k) % 251), "byte %zu differs", i + k);
    }
}

int main(void)
{
    int full[2], large[2], packets[2], no_reader[2], no_writer[2], empty[2], child_pipe[2];
    signal(SIGPIPE, SIG_IGN);
    MUST(pipe2(full, O_NONBLOCK));
    fill(full[1], 64000);
    MUST(pipe(large));
    MUST(fcntl(large[1], F_SETPIPE_SZ, 1 << 20));
    fill(large[1], 300000);
    MUST(pipe2(packets, O_DIRECT | O_NONBLOCK));
    MUST((int)write(packets[1], "first", 5));
    MUST((int)write(packets[1], "second one", 10));
    MUST(pipe(no_reader));
    close(no_reader[0]);
    MUST(pipe(no_writer));
    MUST((int)write(no_writer[1], "last words", 10));
    close(no_writer[1]);
    MUST(pipe2(empty, O_NONBLOCK));
    MUST(pipe(child_pipe));
    pid_t child = fidelity_fork();
    if (child == 0) {
        close(child_pipe[1]);
        char byte = 0;
        _exit(read(child_pipe[0], &byte, 1) == 1 ? byte : 99);      /* blocks across the fork */
    }
    close(child_pipe[0]);

    MUST(mkfifo("/tmp/fidelity-fifo", 0620));
    int fifo_read = MUST(open("/tmp/fidelity-fifo", O_RDONLY | O_NONBLOCK)), fifo_write = MUST(open("/tmp/fidelity-fifo", O_WRONLY));
    MUST((int)write(fifo_write, "through a name", 14));
    MUST(mkfifo("/tmp/fidelity-fifo-gone", 0600));
    int gone = MUST(open("/tmp/fidelity-fifo-gone", O_RDWR));
    MUST((int)write(gone, "nameless", 8));
    MUST(unlink("/tmp/fidelity-fifo-gone"));
    /* A second description of the same pipe end, with flags of its own. */
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", full[0]);
    int second = MUST(open(path, O_RDONLY));

    const int all[] = { full[0], full[1], large[0], large[1], packets[0], packets[1], no_reader[1], no_writer[0], empty[0], empty[1], child_pipe[1],
                        fifo_read, fifo_write, gone, second };
    int flags[sizeof all / sizeof *all];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        flags[i] = MUST(fcntl(all[i], F_GETFL));

    fidelity_ready();
    fidelity_await_go();
    char text[64] = "";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        CHECK(fcntl(all[i], F_GETFL) == flags[i], "descriptor %zu: flags 0%o instead of 0%o", i, fcntl(all[i], F_GETFL), flags[i]);
    CHECK((fcntl(full[0], F_GETFL) & O_NONBLOCK) && !(fcntl(second, F_GETFL) & O_NONBLOCK), "status flags differ");
    int waiting = 0;
    ioctl(second, FIONREAD, &waiting);
    CHECK(waiting == 64000, "the second description sees %d bytes", waiting);
    check_content(full[0], 64000);
    CHECK(read(full[0], text, 1) == -1 && errno == EAGAIN, "the pipe holds more than was written");
    CHECK(fcntl(large[0], F_GETPIPE_SZ) == 1 << 20, "the capacity is %d", fcntl(large[0], F_GETPIPE_SZ));
    check_content(large[0], 300000);
    CHECK(read(packets[0], text, sizeof text) == 5 && memcmp(text, "first", 5) == 0, "the first packet differs");
    CHECK(read(packets[0], text, 6) == 6 && memcmp(text, "second", 6) == 0, "the second packet differs");
    CHECK(read(packets[0], text, 6) == -1 && errno == EAGAIN, "the rest of a packet was kept");
    CHECK(fcntl(packets[1], F_GETFL) & O_DIRECT, "packet mode is lost");
    CHECK(write(no_reader[1], "x", 1) == -1 && errno == EPIPE, "no EPIPE");
    CHECK(read(no_writer[0], text, sizeof text) == 10 && memcmp(text, "last words", 10) == 0, "the last words differ");
    CHECK(read(no_writer[0], text, sizeof text) == 0, "no end of file");
    CHECK(read(empty[0], text, 1) == -1 && errno == EAGAIN, "the empty pipe is not empty");
    CHECK(read(fifo_read, text, sizeof text) == 14 && memcmp(text, "through a name", 14) == 0, "the FIFO's content differs");
    close(fifo_write);
    CHECK(read(fifo_read, text, 1) == 0, "no end of file on the FIFO");
    int again = MUST(open("/tmp/fidelity-fifo", O_WRONLY | O_NONBLOCK));
    MUST((int)write(again, "again", 5));
    CHECK(read(fifo_read, text, sizeof text) == 5, "the FIFO is not the one with that name");
    CHECK(read(gone, text, sizeof text) == 8 && memcmp(text, "nameless", 8) == 0, "the unlinked FIFO's content differs");
    text[0] = fidelity_in_branch() ? 11 : 22;
    MUST((int)write(child_pipe[1], text, 1));
    fidelity_expect_exit(child, text[0]);
    fidelity_pass();
}
