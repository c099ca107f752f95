/*
 * Asynchronous I/O contexts: unread events, a ring that has gone round, one that was moved, one whose memory a child has inherited, one that is at work
 * while the fork happens. No request is lost or told twice.
 */
#include "fidelity.h"

#include <linux/aio_abi.h>

#define SMALL 100               /* places that are in use at once */
#define FILE_NAME FIDELITY_DIRECTORY "aio.data"

static aio_context_t setup(unsigned events)
{
    aio_context_t context = 0;
    MUST(syscall(SYS_io_setup, events, &context));
    return context;
}

static void submit(aio_context_t context, int opcode, int fd, uint64_t data)
{
    static char buffer[16] = "sixteen letters";
    struct iocb request = { .aio_lio_opcode = (uint16_t)opcode, .aio_fildes = (uint32_t)fd, .aio_data = data };
    struct iocb *list = &request;
    if (opcode == IOCB_CMD_PWRITE) {
        request.aio_buf = (uint64_t)buffer;
        request.aio_nbytes = data % sizeof buffer;
    }
    CHECK(syscall(SYS_io_submit, context, 1, &list) == 1, "io_submit: %s", strerror(errno));
}

static int fetch(aio_context_t context, struct io_event *events, int least, int most, int seconds)
{
    struct timespec limit = { seconds, 0 };
    for (;;) {
        int got = (int)syscall(SYS_io_getevents, context, least, most, events, &limit);
        if (got >= 0 || errno != EINTR)
            return got;
    }
}

static void expect(aio_context_t context, uint64_t first, int count)
{
    struct io_event events[SMALL];
    CHECK(fetch(context, events, count, count, 1) == count, "not %d events", count);
    for (int i = 0; i < count; i++)
        CHECK(events[i].data == first + (uint64_t)i && events[i].res == (long)((first + (uint64_t)i) % 16), "event %d: data %lu, result %ld", i,
              (unsigned long)events[i].data, (long)events[i].res);
}

/* Move the ring to another address, which is the context's name. */
static aio_context_t move(aio_context_t context)
{
    void *place = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mremap((void *)context, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, place) == place, "mremap: %s", strerror(errno));
    return (aio_context_t)place;
}

/* Fill the context to its last place; returns how many requests it took. */
static int capacity(aio_context_t context, int fd)
{
    struct iocb request = { .aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = (uint32_t)fd }, *list = &request;
    int count = 0;
    while (syscall(SYS_io_submit, context, 1, &list) == 1)
        count++;
    CHECK(errno == EAGAIN, "io_submit: %s", strerror(errno));
    return count;
}

static int drain(aio_context_t context)
{
    struct io_event events[SMALL];
    int sum = 0, got;
    while ((got = fetch(context, events, 0, SMALL, 0)) > 0)
        sum += got;
    return sum;
}

int main(void)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    int file = MUST(open(FILE_NAME, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    aio_context_t unused = setup(8), unread = setup(SMALL), round = setup(SMALL), moved = move(setup(8)), large = setup(1000), full = setup(1);
    aio_context_t gone = setup(4), busy = setup(SMALL);
    for (uint64_t i = 0; i < 7; i++)
        submit(unread, IOCB_CMD_PWRITE, file, i);
    for (uint64_t i = 0; i < 300; i++) {
        submit(round, IOCB_CMD_PWRITE, file, i);
        if (i >= 20)
            expect(round, i - 20, 1);
    }
    for (uint64_t i = 0; i < 5; i++)
        submit(moved, IOCB_CMD_PWRITE, file, i);
    expect(moved, 0, 3);
    for (uint64_t i = 0; i < 600; i++)
        submit(large, IOCB_CMD_PWRITE, file, i);
    int places = capacity(full, file);
    CHECK(fetch(full, (struct io_event[1]){ { 0 } }, 1, 1, 0) == 1, "no event");
    MUST(syscall(SYS_io_destroy, gone));

    pid_t child = fidelity_fork();
    if (child == 0) {
        uint32_t tail = ((volatile uint32_t *)large)[3];
        fidelity_await_go();
        CHECK(tail > 0 && ((volatile uint32_t *)large)[3] == tail, "the inherited memory lost its content");
        CHECK(fetch(unread, (struct io_event[1]){ { 0 } }, 0, 1, 0) < 0 && errno == EINVAL, "an inherited ring is a context");
        submit(setup(8), IOCB_CMD_PWRITE, file, 1);
        _exit(3);
    }

    fidelity_ready();
    uint64_t sent = 0, told = 0;
    struct io_event events[SMALL];
    while (!fidelity_may_go()) {
        for (; sent < told + 40; sent++)
            submit(busy, IOCB_CMD_FSYNC, file, sent);
        told += (uint64_t)fetch(busy, events, 1, SMALL, 5);
    }
    while (told < sent) {
        int got = fetch(busy, events, 1, SMALL, 5);
        CHECK(got > 0, "%lu requests of %lu never ended", (unsigned long)(sent - told), (unsigned long)sent);
        told += (uint64_t)got;
    }

    expect(unread, 0, 7);
    expect(round, 280, 20);
    expect(moved, 3, 2);
    CHECK(fetch(unused, events, 0, SMALL, 0) == 0 && fetch(gone, events, 0, SMALL, 0) < 0 && errno == EINVAL, "an unused or a destroyed context");
    for (uint64_t i = 0; i < 600; i += 50)
        expect(large, i, 50);
    CHECK(drain(full) == places - 1, "the full context lost or gained an event");
    for (int i = 0; i < 3; i++) {       /* a processor keeps some places in reserve, so that how many there are varies */
        int now = capacity(full, file);
        CHECK(now > places / 2 && drain(full) == now, "%d places at first, %d after the fork", places, now);
    }
    for (uint64_t i = 0; i < 50; i++)
        submit(unread, IOCB_CMD_PWRITE, file, i);
    expect(unread, 0, 50);
    MUST(syscall(SYS_io_destroy, moved));
    CHECK(fetch(moved, events, 0, SMALL, 0) < 0 && errno == EINVAL, "the moved context was not destroyed");
    fidelity_expect_exit(child, 3);
    fidelity_pass();
}
