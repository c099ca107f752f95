/* Ordinary files that are called like memfds, System V segments and shared anonymous memory: open and mapped, they stay files. */
#include "fidelity.h"

#include <sys/mman.h>

static const char *const names[] = { "/memfd:fidelity (deleted)", "/memfd:fidelity", "/SYSV00000000 (deleted)", "/SYSVfidelity" };
#define COUNT (sizeof names / sizeof *names)
#define SIZE 8192

int main(void)
{
    int fds[COUNT];
    char *shared[COUNT], *private[COUNT];
    for (size_t i = 0; i < COUNT; i++) {
        fds[i] = MUST(open(names[i], O_RDWR | O_CREAT | O_EXCL, 0640));
        MUST(ftruncate(fds[i], SIZE));
        shared[i] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0);
        private[i] = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fds[i], 0);
        CHECK(shared[i] != MAP_FAILED && private[i] != MAP_FAILED, "mmap: %s", strerror(errno));
        snprintf(shared[i], SIZE, "shared %zu", i);
        snprintf(private[i] + 4096, SIZE - 4096, "private %zu", i);
    }
    /* A real one beside them. */
    int memory = MUST(memfd_create("fidelity", 0));
    MUST(ftruncate(memory, SIZE));
    char *real = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    strcpy(real, "real");

    fidelity_ready();
    fidelity_await_go();

    for (size_t i = 0; i < COUNT; i++) {
        char wanted[32], got[32] = "";
        struct stat open_file, named;
        snprintf(wanted, sizeof wanted, "shared %zu", i);
        CHECK(strcmp(shared[i], wanted) == 0, "%s holds \"%s\"", names[i], shared[i]);
        snprintf(wanted, sizeof wanted, "private %zu", i);
        CHECK(strcmp(private[i] + 4096, wanted) == 0, "the private mapping of %s holds \"%s\"", names[i], private[i] + 4096);
        MUST(fstat(fds[i], &open_file));
        MUST(stat(names[i], &named));
        CHECK(open_file.st_ino == named.st_ino && open_file.st_dev == named.st_dev && (named.st_mode & 0777) == 0640, "%s is another file", names[i]);
        snprintf(shared[i], SIZE, "now in a %s", fidelity_in_branch() ? "branch" : "source");
        int again = MUST(open(names[i], O_RDONLY));
        MUST((int)read(again, got, sizeof got - 1));
        CHECK(strcmp(got, shared[i]) == 0, "what is written into the mapping of %s is not in the file: \"%s\"", names[i], got);
        close(again);
    }
    CHECK(strcmp(real, "real") == 0, "the memfd holds \"%s\"", real);
    fidelity_pass();
}
