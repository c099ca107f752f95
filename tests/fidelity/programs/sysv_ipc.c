/* System V: semaphores with values, last changer and SEM_UNDO, a blocked waiter; message queues with types and order; segments, one of them removed. */
#include "fidelity.h"

#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#define KEY 0x7c10e0

struct text {
    long type;
    char bytes[64];
};

static int change(int set, int number, int by, int flags)
{
    struct sembuf operation = { (unsigned short)number, (short)by, (short)flags };
    return semop(set, &operation, 1);
}

static void put(int queue, long type, const char *bytes)
{
    struct text text = { .type = type };
    strcpy(text.bytes, bytes);
    MUST(msgsnd(queue, &text, strlen(bytes), IPC_NOWAIT));
}

static void expect(int queue, long wanted, long type, const char *bytes)
{
    struct text text = { 0 };
    ssize_t size = msgrcv(queue, &text, sizeof text.bytes, wanted, IPC_NOWAIT);
    CHECK(size == (ssize_t)strlen(bytes) && text.type == type && memcmp(text.bytes, bytes, (size_t)size) == 0,
          "asked for type %ld, got %zd bytes of type %ld \"%.20s\", not \"%s\"", wanted, size, text.type, text.bytes, bytes);
}

/* Takes two semaphores and gives one it does not own, all to be undone when it ends; ends when told by a byte. */
static void __attribute__((noreturn)) hold(int set, int ready, int end)
{
    char byte = 'r';
    MUST(change(set, 1, -1, SEM_UNDO));
    MUST(change(set, 2, -2, SEM_UNDO));
    MUST(change(set, 3, 1, SEM_UNDO));
    MUST((int)write(ready, &byte, 1));
    MUST((int)read(end, &byte, 1));
    _exit(0);
}

static void __attribute__((noreturn)) wait_for_all(int set, int queue, int ready)
{
    char byte = 'w';
    struct text text = { 0 };
    MUST((int)write(ready, &byte, 1));
    MUST(change(set, 4, -1, 0));
    CHECK(msgrcv(queue, &text, sizeof text.bytes, 9, 0) == 4 && strcmp(text.bytes, "late") == 0, "the waiter got \"%s\"", text.bytes);
    _exit(0);
}

int main(void)
{
    int ready[2], end[2];
    MUST(pipe(ready));
    MUST(pipe(end));
    close(MUST(open("/dev/null", O_RDONLY)));
    int fresh = MUST(semget(IPC_PRIVATE, 2, 0600));
    int set = MUST(semget(KEY, 5, IPC_CREAT | IPC_EXCL | 0640));
    unsigned short values[5] = { 32767, 1, 2, 0, 0 }, now[5];
    MUST(semctl(set, 0, SETALL, values));
    pid_t holder = fidelity_fork();
    if (holder == 0)
        hold(set, ready[1], end[0]);
    int queue = MUST(msgget(KEY, IPC_CREAT | IPC_EXCL | 0622)), other = MUST(msgget(IPC_PRIVATE, 0600));
    put(queue, 5, "first");
    put(queue, 2, "second");
    put(queue, 5, "");
    put(queue, 7, "fourth");
    struct msqid_ds state;
    MUST(msgctl(other, IPC_STAT, &state));
    state.msg_perm.uid = 1000;
    state.msg_perm.gid = 1001;
    state.msg_qbytes = 2000;
    MUST(msgctl(other, IPC_SET, &state));
    pid_t waiter = fidelity_fork();
    if (waiter == 0)
        wait_for_all(set, queue, ready[1]);
    int detached = MUST(shmget(KEY, 10000, IPC_CREAT | IPC_EXCL | 0644)), removed = MUST(shmget(IPC_PRIVATE, 4096, 0600));
    char *writable = shmat(detached, NULL, 0), *kept = shmat(removed, NULL, 0);
    strcpy(writable + 5000, "left behind");
    strcpy(kept, "still here");
    MUST(shmdt(writable));
    const char *readable = shmat(removed, NULL, SHM_RDONLY);
    MUST(shmctl(removed, IPC_RMID, NULL));
    int parted = MUST(shmget(IPC_PRIVATE, 3 * 4096, 0600));
    char *parts = shmat(parted, NULL, 0);
    strcpy(parts + 2 * 4096, "third page");
    MUST(mprotect(parts + 4096, 4096, PROT_READ));
    MUST(shmctl(parted, IPC_RMID, NULL));
    int locked = MUST(shmget(IPC_PRIVATE, 8192, 0600));
    bool can_lock = shmctl(locked, SHM_LOCK, NULL) == 0;        /* not where RLIMIT_MEMLOCK is 0 */
    char bytes[2];
    for (int got = 0; got < 2;)
        got += MUST((int)read(ready[0], bytes + got, 2 - (size_t)got));
    fidelity_sleep_ms(300);         /* the waiter enters semop */

    fidelity_ready();
    fidelity_await_go();

    struct semid_ds semaphores;
    CHECK(semget(KEY, 5, 0) == set && msgget(KEY, 0) == queue && shmget(KEY, 1, 0) == detached, "the ids or keys differ");
    MUST(semctl(set, 0, IPC_STAT, &semaphores));
    CHECK((semaphores.sem_perm.mode & 0777) == 0640 && semaphores.sem_otime != 0, "mode %o", semaphores.sem_perm.mode);
    MUST(semctl(fresh, 0, IPC_STAT, &semaphores));
    CHECK(semaphores.sem_otime == 0, "a set that nobody has used seems to be initialised");
    MUST(semctl(set, 0, GETALL, now));
    CHECK(now[0] == 32767 && now[1] == 0 && now[2] == 0 && now[3] == 1 && now[4] == 0, "the values are %d %d %d %d %d", now[0], now[1], now[2], now[3], now[4]);
    CHECK(semctl(set, 1, GETPID) == holder, "the last to change is %d, not %d", semctl(set, 1, GETPID), holder);
    for (int tries = 0; semctl(set, 4, GETNCNT) != 1 && tries < 100; tries++)
        fidelity_sleep_ms(50);
    CHECK(semctl(set, 4, GETNCNT) == 1, "nobody waits for the semaphore");
    MUST((int)write(end[1], "x", 1));
    fidelity_expect_exit(holder, 0);
    MUST(semctl(set, 0, GETALL, now));
    CHECK(now[0] == 32767 && now[1] == 1 && now[2] == 2 && now[3] == 0, "undone, the values are %d %d %d %d", now[0], now[1], now[2], now[3]);

    MUST(msgctl(queue, IPC_STAT, &state));
    CHECK(state.msg_qnum == 4 && (state.msg_perm.mode & 0777) == 0622, "%lu messages, mode %o", state.msg_qnum, state.msg_perm.mode);
    expect(queue, 7, 7, "fourth");
    expect(queue, 0, 5, "first");
    expect(queue, -5, 2, "second");
    expect(queue, 0, 5, "");
    MUST(change(set, 4, 1, 0));
    put(queue, 9, "late");
    fidelity_expect_exit(waiter, 0);
    MUST(msgctl(other, IPC_STAT, &state));
    CHECK(state.msg_perm.uid == 1000 && state.msg_perm.gid == 1001 && state.msg_perm.cuid == 0 && state.msg_qbytes == 2000, "owner %u:%u, limit %lu",
          state.msg_perm.uid, state.msg_perm.gid, state.msg_qbytes);

    struct shmid_ds segment;
    CHECK(strcmp(readable, "still here") == 0, "the removed segment is empty");
    strcpy(kept, "changed");
    CHECK(strcmp(readable, "changed") == 0, "the two mappings of a segment are two");
    MUST(shmctl(removed, IPC_STAT, &segment));
    CHECK(segment.shm_nattch == 2 && (segment.shm_perm.mode & SHM_DEST), "%lu attached, mode %o", segment.shm_nattch, segment.shm_perm.mode);
    writable = shmat(detached, NULL, 0);
    CHECK(writable != (void *)-1 && strcmp(writable + 5000, "left behind") == 0, "the detached segment is empty");
    int null = MUST(open("/dev/zero", O_RDONLY));
    CHECK(strcmp(parts + 2 * 4096, "third page") == 0 && read(null, parts, 1) == 1, "the segment in three parts");
    CHECK(read(null, parts + 4096, 1) == -1 && errno == EFAULT, "its middle can be written to");
    MUST(mprotect(parts + 4096, 4096, PROT_READ | PROT_WRITE));
    CHECK(read(null, parts + 4096, 1) == 1, "its middle cannot be made writable again");
    MUST(shmctl(locked, IPC_STAT, &segment));
    CHECK(!can_lock == !(segment.shm_perm.mode & SHM_LOCKED), "the locked segment has mode %o", segment.shm_perm.mode);
    MUST(shmctl(locked, IPC_RMID, NULL));
    MUST(shmdt(kept));
    MUST(shmdt(readable));
    CHECK(shmctl(removed, IPC_STAT, &segment) < 0, "the removed segment outlives its last user");
    MUST(semctl(set, 0, IPC_RMID));
    MUST(semctl(fresh, 0, IPC_RMID));
    MUST(msgctl(queue, IPC_RMID, NULL));
    MUST(msgctl(other, IPC_RMID, NULL));
    MUST(shmctl(detached, IPC_RMID, NULL));
    fidelity_pass();
}
