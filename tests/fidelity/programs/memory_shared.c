/* Memory shared by processes: anonymous across fork, /dev/shm by name and unlinked, memfds (sealed too), SysV segments. Private to each side. */
#include "fidelity.h"

#include <sys/ipc.h>
#include <sys/shm.h>

#define SIZE (256 << 10)

static char *anonymous, *named, *nameless, *memory, *attached, *marked;

/* Wait until the parent has written `value` into the first byte of each area, then answer in the second. */
static void __attribute__((noreturn)) answer(void)
{
    char *areas[] = { anonymous, named, nameless, memory, attached, marked };
    fidelity_await_go();
    for (int i = 0; i < 6; i++) {
        for (int tries = 0; areas[i][0] != '!' && tries < 500; tries++)
            fidelity_sleep_ms(5);
        if (areas[i][0] != '!' || areas[i][100] != 'a' + i)
            _exit(50 + i);
        areas[i][1] = '?';
    }
    _exit(0);
}

/* The name by which the kernel lists a mapping. */
static void check_name(const char *area, const char *name)
{
    char wanted[32];
    snprintf(wanted, sizeof wanted, "%lx-", (unsigned long)area);
    char *line = strstr(fidelity_file("/proc/self/maps"), wanted), *end = line ? strchr(line, '\n') : NULL;
    CHECK(end, "the mapping is not listed");
    *end = 0;
    CHECK(strlen(line) > strlen(name) && strcmp(end - strlen(name), name) == 0, "%s is not %s", line, name);
}

static char *map(int fd)
{
    char *area = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(area != MAP_FAILED, "mmap: %s", strerror(errno));
    return area;
}

int main(void)
{
    anonymous = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int named_fd = MUST(open("/dev/shm/fidelity-named", O_RDWR | O_CREAT | O_TRUNC, 0640));
    MUST(ftruncate(named_fd, SIZE));
    named = map(named_fd);
    int nameless_fd = MUST(open("/dev/shm/fidelity-nameless", O_RDWR | O_CREAT | O_TRUNC, 0600));
    MUST(ftruncate(nameless_fd, SIZE));
    nameless = map(nameless_fd);
    MUST(unlink("/dev/shm/fidelity-nameless"));
    int memory_fd = MUST(memfd_create("fidelity", MFD_ALLOW_SEALING | MFD_CLOEXEC));
    MUST(ftruncate(memory_fd, SIZE));
    memory = map(memory_fd);
    MUST(fcntl(memory_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW));
    int sealed_fd = MUST(memfd_create("fidelity-sealed", MFD_ALLOW_SEALING));
    MUST((int)write(sealed_fd, "sealed text", 12));
    MUST(fcntl(sealed_fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    int segment = MUST(shmget(0x4711, SIZE, IPC_CREAT | 0600)), marked_segment = MUST(shmget(IPC_PRIVATE, SIZE, 0600));
    attached = shmat(segment, NULL, 0);
    marked = shmat(marked_segment, NULL, 0);
    MUST(shmctl(marked_segment, IPC_RMID, NULL));
    int detached_segment = MUST(shmget(0x4712, 8192, IPC_CREAT | 0640));
    strcpy(shmat(detached_segment, NULL, 0), "not attached");

    char *areas[] = { anonymous, named, nameless, memory, attached, marked };
    for (int i = 0; i < 6; i++)
        areas[i][100] = areas[i][SIZE - 1] = (char)('a' + i);
    pid_t child = fidelity_fork();
    if (child == 0)
        answer();
    fidelity_ready();
    fidelity_await_go();

    bool branch = fidelity_in_branch();
    check_name(anonymous, "/dev/zero (deleted)");
    check_name(memory, "/memfd:fidelity (deleted)");
    for (int i = 0; i < 6; i++) {
        CHECK(areas[i][0] == 0 && areas[i][1] == 0, "area %d was written by the other side", i);
        CHECK(areas[i][100] == 'a' + i && areas[i][SIZE - 1] == 'a' + i, "area %d differs", i);
        areas[i][200] = branch ? 'B' : 'S';
        areas[i][0] = '!';
    }
    fidelity_expect_exit(child, 0);
    for (int i = 0; i < 6; i++)
        CHECK(areas[i][1] == '?' && areas[i][200] == (branch ? 'B' : 'S'), "area %d is not shared with the child", i);
    int again = MUST(open("/dev/shm/fidelity-named", O_RDWR));
    struct stat st, st_named;
    fstat(again, &st);
    fstat(named_fd, &st_named);
    CHECK((st.st_mode & 0777) == 0640 && st.st_ino == st_named.st_ino, "/dev/shm/fidelity-named is another file");
    CHECK(map(again)[100] == 'b', "opened by name, the segment differs");
    CHECK(access("/dev/shm/fidelity-nameless", F_OK) < 0, "the unlinked segment has a name again");
    CHECK(fcntl(memory_fd, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW), "seals %x", fcntl(memory_fd, F_GET_SEALS));
    char text[16] = "";
    CHECK(fcntl(sealed_fd, F_GET_SEALS) == (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), "seals of the sealed one differ");
    CHECK(pread(sealed_fd, text, 12, 0) == 12 && strcmp(text, "sealed text") == 0, "the sealed memfd differs");
    CHECK(lseek(sealed_fd, 0, SEEK_CUR) == 12, "the offset of the sealed memfd differs");
    CHECK(shmget(0x4711, 0, 0) == segment, "segment 0x4711 has another id");
    CHECK(shmget(0x4712, 0, 0) == detached_segment, "segment 0x4712 has another id");
    CHECK(strcmp(shmat(detached_segment, NULL, 0), "not attached") == 0, "the detached segment differs");
    struct shmid_ds status;
    MUST(shmctl(marked_segment, IPC_STAT, &status));
    CHECK(status.shm_perm.mode & 01000, "the segment is not marked for removal any more");
    fidelity_pass();
}
