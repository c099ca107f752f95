/* POSIX message queues: priorities and order, attributes, an unlinked one, one that nobody has open, a full one with a blocked writer, a blocked reader. */
#include "fidelity.h"

#include <mqueue.h>
#include <sys/resource.h>

static mqd_t make(const char *name, int flags, mode_t mode, long most, long size)
{
    struct mq_attr attributes = { .mq_maxmsg = most, .mq_msgsize = size };
    mqd_t queue = mq_open(name, O_CREAT | O_EXCL | flags, mode, &attributes);
    CHECK(queue != (mqd_t)-1, "cannot make %s: %s", name, strerror(errno));
    return queue;
}

static void put(mqd_t queue, const char *text, unsigned priority)
{
    MUST(mq_send(queue, text, strlen(text), priority));
}

static void expect(mqd_t queue, const char *text, unsigned priority)
{
    char got[64] = "";
    unsigned its_priority = 99;
    struct timespec soon = { 0 };
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_sec += 10;
    ssize_t size = mq_timedreceive(queue, got, sizeof got, &its_priority, &soon);
    CHECK(size == (ssize_t)strlen(text) && memcmp(got, text, strlen(text)) == 0 && its_priority == priority, "got \"%s\" (%zd, priority %u), not \"%s\" (%u)",
          got, size, its_priority, text, priority);
}

int main(void)
{
    mqd_t mixed = make("/fidelity-mixed", O_RDWR | O_NONBLOCK, 0640, 8, 64);
    put(mixed, "low", 0);
    put(mixed, "high one", 7);
    put(mixed, "middle", 3);
    put(mixed, "", 7);
    put(mixed, "high three", 7);
    MUST(fchown(mixed, 1000, 1001));
    mqd_t writer = mq_open("/fidelity-mixed", O_WRONLY);
    MUST(writer);
    mqd_t left = make("/fidelity-left", O_WRONLY, 0600, 2, 64);
    put(left, "for later", 1);
    MUST(mq_close(left));
    mqd_t unlinked = make("/fidelity-gone", O_RDWR, 0600, 4, 64), second = mq_open("/fidelity-gone", O_RDONLY | O_NONBLOCK);
    MUST(second);
    put(unlinked, "nameless", 2);
    MUST(mq_unlink("/fidelity-gone"));
    mqd_t full = make("/fidelity-full", O_RDWR, 0600, 1, 64), empty = make("/fidelity-empty", O_RDWR, 0600, 1, 64);
    put(full, "first", 0);
    pid_t blocked_writer = fidelity_fork();
    if (blocked_writer == 0) {
        put(full, "second", 5);
        _exit(0);
    }
    pid_t blocked_reader = fidelity_fork();
    if (blocked_reader == 0) {
        char got[64] = "";
        CHECK(mq_receive(empty, got, sizeof got, NULL) == 6 && strcmp(got, "wake!!") == 0, "the reader got \"%s\"", got);
        _exit(0);
    }
    fidelity_sleep_ms(300);

    fidelity_ready();
    fidelity_await_go();

    struct mq_attr attributes;
    MUST(mq_getattr(mixed, &attributes));
    CHECK(attributes.mq_curmsgs == 5 && attributes.mq_maxmsg == 8 && attributes.mq_msgsize == 64 && attributes.mq_flags == O_NONBLOCK,
          "%ld of %ld messages of %ld bytes, flags %lo", attributes.mq_curmsgs, attributes.mq_maxmsg, attributes.mq_msgsize, attributes.mq_flags);
    struct stat st;
    MUST(fstat(mixed, &st));
    CHECK(st.st_uid == 1000 && st.st_gid == 1001 && (st.st_mode & 07777) == 0640, "owner %u:%u, mode %o", st.st_uid, st.st_gid, st.st_mode);
    put(writer, "the last", 3);
    expect(mixed, "high one", 7);
    expect(mixed, "", 7);
    expect(mixed, "high three", 7);
    expect(mixed, "middle", 3);
    expect(mixed, "the last", 3);
    expect(mixed, "low", 0);
    char byte[64];
    CHECK(mq_receive(mixed, byte, sizeof byte, NULL) == -1 && errno == EAGAIN, "there is one message too many");
    CHECK(mq_receive(writer, byte, sizeof byte, NULL) == -1 && errno == EBADF, "the writer's descriptor can read");
    left = mq_open("/fidelity-left", O_RDONLY);
    CHECK(left != (mqd_t)-1, "the queue that nobody had open is gone: %s", strerror(errno));
    expect(left, "for later", 1);
    CHECK(mq_open("/fidelity-gone", O_RDONLY) == (mqd_t)-1 && errno == ENOENT, "the unlinked queue has its name again");
    put(unlinked, "more", 1);
    expect(second, "nameless", 2);
    expect(unlinked, "more", 1);
    int status;
    CHECK(waitpid(blocked_writer, &status, WNOHANG) == 0, "the writer is not blocked any more");
    expect(full, "first", 0);
    expect(full, "second", 5);
    fidelity_expect_exit(blocked_writer, 0);
    put(empty, "wake!!", 0);
    fidelity_expect_exit(blocked_reader, 0);
    mq_unlink("/fidelity-mixed");
    mq_unlink("/fidelity-left");
    mq_unlink("/fidelity-full");
    mq_unlink("/fidelity-empty");
    fidelity_pass();
}
