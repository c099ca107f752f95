/* Huge pages of the host's pool: private, shared with a child, in a memfd, in a System V segment. Where the pool is too small for two more copies nothing is checked. */
#include "memory.h"

#include <sys/shm.h>

#define HUGE (2UL << 20)
#define POOL "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"
#define NEEDED 60               /* for forks of four workspaces at once */

int main(void)
{
    if (access(POOL, R_OK) < 0 || atoi(fidelity_file(POOL)) < NEEDED) {
        fidelity_ready();
        fidelity_await_go();
        fidelity_pass();
    }
    char *private = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    char *shared = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    int fd = MUST(memfd_create("fidelity-huge", MFD_HUGETLB | MFD_ALLOW_SEALING | MFD_CLOEXEC));
    MUST(ftruncate(fd, 2 * HUGE));
    char *memory = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(private != MAP_FAILED && shared != MAP_FAILED && memory != MAP_FAILED, "huge pages: %s", strerror(errno));
    int id = MUST(shmget(IPC_PRIVATE, HUGE + 5000, IPC_CREAT | SHM_HUGETLB | 0600));
    char *segment = shmat(id, NULL, 0);
    CHECK(segment != (void *)-1, "a segment of huge pages: %s", strerror(errno));
    MUST(shmctl(id, IPC_RMID, NULL));
    strcpy(segment + 12345, "segment");
    strcpy(private + HUGE + 12345, "private");
    strcpy(shared + 12345, "shared");
    strcpy(memory + HUGE + 12345, "memory");
    MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK));
    pid_t child = fidelity_fork();
    if (child == 0) {
        fidelity_await_go();
        for (int tries = 0; shared[0] != '!' && tries < 2000; tries++)
            fidelity_sleep_ms(10);
        _exit(shared[0] == '!' && strcmp(private + HUGE + 12345, "private") == 0 ? 0 : 1);
    }
    struct expected expected[] = { expect_unchanged("private", private), expect_unchanged("shared", shared), expect_unchanged("memfd", memory),
                                   expect_unchanged("segment", segment) };

    fidelity_ready();
    fidelity_await_go();
    check_unchanged(expected, 4);
    CHECK(strcmp(segment + 12345, "segment") == 0 && segment[HUGE] == 0, "segment");
    CHECK(strcmp(private + HUGE + 12345, "private") == 0 && private[0] == 0, "private");
    CHECK(strcmp(shared + 12345, "shared") == 0 && shared[HUGE] == 0, "shared");
    CHECK(strcmp(memory + HUGE + 12345, "memory") == 0 && memory[1] == 0, "memfd");
    CHECK(fcntl(fd, F_GET_SEALS) == F_SEAL_SHRINK, "seals %x", fcntl(fd, F_GET_SEALS));
    private[5] = fidelity_in_branch() ? 'b' : 's';
    memory[5] = private[5];
    char *again = mmap(NULL, HUGE, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(again != MAP_FAILED && again[5] == private[5], "the memfd is not what is mapped");
    shared[0] = '!';
    fidelity_expect_exit(child, 0);
    fidelity_pass();
}
