/*
 * What lies in IPC namespaces made inside: System V segments, semaphores with SEM_UNDO and message queues, POSIX queues open or not, unlinked too. Two
 * namespaces and the workspace's own hold the same ids, keys and names, with something else in each.
 */
#include "fidelity.h"

#include <mqueue.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define KEY 0x7c1ed
#define INSIDE 2                /* namespaces made inside; number 0 is the workspace's own */
#define SIZE 20000

struct text {
    long type;
    char bytes[32];
};

/* Everything that a namespace holds. */
struct objects {
    int segment, removed, set, queue;
    unsigned long pages;        /* of segments, in memory */
    char *attached, *removed_at;
    mqd_t named, unlinked;
    pid_t holder;
    int end;                    /* a byte written here ends the holder */
};

static int *ready;              /* namespaces that are, shared by all */

static void write_text(const char *path, const char *text)
{
    int fd = MUST(open(path, O_WRONLY | O_CLOEXEC));
    MUST(write(fd, text, strlen(text)));
    close(fd);
}

static void enter(void)
{
    MUST(unshare(CLONE_NEWUSER | CLONE_NEWIPC));
    write_text("/proc/self/setgroups", "deny");
    write_text("/proc/self/uid_map", "0 0 1");
    write_text("/proc/self/gid_map", "0 0 1");
}

static void change(int set, int number, int by, int flags)
{
    struct sembuf operation = { (unsigned short)number, (short)by, (short)flags };
    MUST(semop(set, &operation, 1));
}

static pid_t hold(int set, int *end)
{
    int taken[2], told[2];
    char byte = 0;
    MUST(pipe(taken));
    MUST(pipe(told));
    pid_t child = fidelity_fork();
    if (child == 0) {
        change(set, 0, -1, SEM_UNDO);
        MUST(write(taken[1], &byte, 1));
        MUST(read(told[0], &byte, 1));
        _exit(0);
    }
    MUST(read(taken[0], &byte, 1));
    close(taken[0]);
    close(taken[1]);
    close(told[0]);
    *end = told[1];
    return child;
}

static mqd_t make_queue(const char *name, const char *text, unsigned priority)
{
    struct mq_attr attributes = { .mq_maxmsg = 4, .mq_msgsize = 32 };
    mqd_t queue = MUST(mq_open(name, O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK, 0620, &attributes));
    MUST(mq_send(queue, text, strlen(text), priority));
    return queue;
}

static void make(int index, struct objects *made)
{
    char text[32];
    snprintf(text, sizeof text, "namespace %d", index);
    made->segment = MUST(shmget(KEY, SIZE, IPC_CREAT | IPC_EXCL | 0640));
    made->attached = shmat(made->segment, NULL, 0);
    strcpy(made->attached + SIZE / 2, text);
    made->removed = MUST(shmget(IPC_PRIVATE, SIZE, 0600));
    made->removed_at = shmat(made->removed, NULL, 0);
    strcpy(made->removed_at, text);
    MUST(shmctl(made->removed, IPC_RMID, NULL));
    made->set = MUST(semget(KEY, 2, IPC_CREAT | IPC_EXCL | 0600));
    unsigned short values[2] = { 1, (unsigned short)(100 + index) };
    MUST(semctl(made->set, 0, SETALL, values));
    made->holder = hold(made->set, &made->end);
    made->queue = MUST(msgget(KEY, IPC_CREAT | IPC_EXCL | 0600));
    struct text message = { .type = 5 + index };
    strcpy(message.bytes, text);
    MUST(msgsnd(made->queue, &message, strlen(text), 0));
    made->named = make_queue("/ipc-nested", text, (unsigned)index);
    MUST(mq_close(make_queue("/ipc-nested-left", text, 7)));
    made->unlinked = make_queue("/ipc-nested-gone", text, 3);
    MUST(mq_unlink("/ipc-nested-gone"));
}

/* Of all segments of the namespace. */
static unsigned long pages_in_memory(void)
{
    struct shm_info info;
    MUST(shmctl(0, SHM_INFO, (struct shmid_ds *)&info));
    return info.shm_rss;
}

static void expect_queued(mqd_t queue, const char *text, unsigned priority)
{
    char got[33] = "";
    unsigned its = 99;
    CHECK(mq_receive(queue, got, 32, &its) == (ssize_t)strlen(text) && strcmp(got, text) == 0 && its == priority, "\"%s\" (%u), not \"%s\" (%u)", got, its,
          text, priority);
}

static void check_posix(const struct objects *made, const char *text, int index)
{
    struct stat st;
    MUST(fstat(made->named, &st));
    CHECK((st.st_mode & 0777) == 0620 && st.st_uid == 0, "mode %o, owner %u", st.st_mode, st.st_uid);
    expect_queued(made->named, text, (unsigned)index);
    MUST(mq_send(made->named, "again", 5, 0));
    mqd_t same = MUST(mq_open("/ipc-nested", O_RDONLY | O_NONBLOCK)), left = MUST(mq_open("/ipc-nested-left", O_RDONLY | O_NONBLOCK));
    expect_queued(same, "again", 0);
    expect_queued(left, text, 7);
    expect_queued(made->unlinked, text, 3);
    CHECK(mq_open("/ipc-nested-gone", O_RDONLY) == (mqd_t)-1 && errno == ENOENT, "the unlinked queue has its name again");
    MUST(mq_unlink("/ipc-nested"));
    MUST(mq_unlink("/ipc-nested-left"));
}

static void check(const struct objects *made, int index)
{
    char text[32];
    snprintf(text, sizeof text, "namespace %d", index);
    CHECK(shmget(KEY, 1, 0) == made->segment && semget(KEY, 1, 0) == made->set && msgget(KEY, 0) == made->queue, "%s: the ids or keys differ", text);
    struct shmid_ds segment;
    MUST(shmctl(made->segment, IPC_STAT, &segment));
    CHECK(segment.shm_nattch == 2 && (segment.shm_perm.mode & 0777) == 0640, "%lu attached, mode %o", segment.shm_nattch, segment.shm_perm.mode);
    const char *again = shmat(made->segment, NULL, SHM_RDONLY);
    CHECK(strcmp(again + SIZE / 2, text) == 0, "%s: the segment holds \"%.20s\"", text, again + SIZE / 2);
    made->attached[0] = 'x';
    CHECK(again[0] == 'x', "%s: the attached segment is another", text);
    CHECK(strcmp(made->removed_at, text) == 0, "%s: the removed segment holds \"%.20s\"", text, made->removed_at);
    MUST(shmctl(made->removed, IPC_STAT, &segment));
    CHECK(segment.shm_perm.mode & SHM_DEST, "the removed segment is not marked so");
    CHECK(semctl(made->set, 0, GETVAL) == 0 && semctl(made->set, 1, GETVAL) == 100 + index, "%s: values %d, %d", text, semctl(made->set, 0, GETVAL),
          semctl(made->set, 1, GETVAL));
    CHECK(semctl(made->set, 0, GETPID) == made->holder, "the last to change is %d, not %d", semctl(made->set, 0, GETPID), made->holder);
    MUST(write(made->end, "x", 1));
    fidelity_expect_exit(made->holder, 0);
    CHECK(semctl(made->set, 0, GETVAL) == 1, "%s: what its last user took was not given back", text);
    struct text message = { 0 };
    CHECK(msgrcv(made->queue, &message, sizeof message.bytes, 0, IPC_NOWAIT) == (ssize_t)strlen(text) && message.type == 5 + index
              && strcmp(message.bytes, text) == 0, "%s: the message is \"%.20s\" of type %ld", text, message.bytes, message.type);
    check_posix(made, text, index);
    MUST(shmdt(again));
    MUST(shmctl(made->segment, IPC_RMID, NULL));
    MUST(semctl(made->set, 0, IPC_RMID));
    MUST(msgctl(made->queue, IPC_RMID, NULL));
}

static void live(int index)
{
    struct objects made;
    if (index)
        enter();
    make(index, &made);
    __atomic_add_fetch(ready, 1, __ATOMIC_SEQ_CST);
    made.pages = pages_in_memory();
    if (!index) {
        while (__atomic_load_n(ready, __ATOMIC_SEQ_CST) <= INSIDE)
            fidelity_sleep_ms(5);
        fidelity_ready();
    }
    fidelity_await_go();
    CHECK(!index || pages_in_memory() == made.pages, "segments with %lu pages have %lu", made.pages, pages_in_memory());
    check(&made, index);
}

int main(void)
{
    umask(0);
    ready = MUST(mmap(NULL, sizeof *ready, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    pid_t children[INSIDE];
    for (int i = 0; i < INSIDE; i++) {
        children[i] = fidelity_fork();
        if (children[i] == 0) {
            live(i + 1);
            _exit(0);
        }
    }
    live(0);
    for (int i = 0; i < INSIDE; i++)
        fidelity_expect_exit(children[i], 0);
    fidelity_pass();
}
