/* Private file mappings with pages written to, read-only-after-relocation data, a mapped file that was unlinked, one that was replaced. */
#include "fidelity.h"

#define PAGES 8
#define PAGE 4096

static const char *volatile constant_pointer = "relocated";     /* lies in RELRO or .data */

static char *map_file(const char *path, char fill, int flags, int protection)
{
    int fd = MUST(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600));
    char page[PAGE];
    for (int i = 0; i < PAGES; i++) {
        memset(page, fill + i, sizeof page);
        MUST((int)write(fd, page, sizeof page));
    }
    char *map = mmap(NULL, PAGES * PAGE, protection, flags, fd, 0);
    CHECK(map != MAP_FAILED, "mmap: %s", strerror(errno));
    close(fd);
    return map;
}

int main(void)
{
    char *dirty = map_file("/tmp/fidelity-dirty", 'a', MAP_PRIVATE, PROT_READ | PROT_WRITE);
    dirty[0] = 'X';
    dirty[3 * PAGE + 7] = 'Y';
    char *protected = map_file("/tmp/fidelity-protected", 'k', MAP_PRIVATE, PROT_READ | PROT_WRITE);
    protected[PAGE] = 'Z';
    MUST(mprotect(protected, PAGES * PAGE, PROT_READ));
    char *unlinked = map_file("/tmp/fidelity-unlinked", 'A', MAP_PRIVATE, PROT_READ | PROT_WRITE);
    unlinked[PAGE] = 'U';
    MUST(unlink("/tmp/fidelity-unlinked"));
    char *replaced = map_file("/tmp/fidelity-replaced", 'P', MAP_PRIVATE, PROT_READ);
    int fd = MUST(open("/tmp/fidelity-new", O_WRONLY | O_CREAT, 0600));
    MUST((int)write(fd, "new content", 11));
    close(fd);
    MUST(rename("/tmp/fidelity-new", "/tmp/fidelity-replaced"));
    char *shared = map_file("/tmp/fidelity-shared", '0', MAP_SHARED, PROT_READ | PROT_WRITE);
    shared[5] = 'S';

    fidelity_ready();
    fidelity_await_go();
    CHECK(dirty[0] == 'X' && dirty[1] == 'a' && dirty[3 * PAGE + 7] == 'Y' && dirty[7 * PAGE] == 'h', "private dirty mapping differs");
    CHECK(protected[PAGE] == 'Z' && protected[PAGE + 1] == 'l' && protected[0] == 'k', "protected mapping differs");
    CHECK(unlinked[PAGE] == 'U' && unlinked[PAGE + 1] == 'B' && unlinked[7 * PAGE] == 'H', "mapping of an unlinked file differs");
    CHECK(access("/tmp/fidelity-unlinked", F_OK) < 0, "the unlinked file has a name again");
    CHECK(replaced[0] == 'P' && replaced[PAGE] == 'Q', "mapping of a replaced file differs");
    CHECK(strcmp(constant_pointer, "relocated") == 0, "relocated data differs");
    CHECK(shared[5] == 'S' && shared[PAGE] == '1', "shared mapping differs");
    shared[6] = fidelity_in_branch() ? 'b' : 's';
    char byte;
    fd = MUST(open("/tmp/fidelity-shared", O_RDONLY));
    MUST((int)pread(fd, &byte, 1, 6));
    CHECK(byte == shared[6], "what is written through the shared mapping is not in the file");
    fidelity_pass();
}
