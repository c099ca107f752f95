/*
 * Files that look alike: two unlinked ones with the same inode number on different layers of the root (if the layers' numbers meet), one that was
 * renamed over, names that end in " (deleted)", an unlinked sparse file of several GiB, mapped as well.
 */
#include "fidelity.h"

#define DIRECTORY "/tmp/fidelity-identity"
#define MAX_FILES 4000
#define SPARSE (6ll << 30)

/* Files in the upper layer until one has the wanted number; those made on the way go again. Returns a descriptor or -1. */
static int make_with_number(ino_t wanted)
{
    for (int i = 0; i < MAX_FILES; i++) {
        struct stat st;
        int fd = MUST(open(DIRECTORY "/numbered", O_RDWR | O_CREAT | O_EXCL, 0600));
        MUST(fstat(fd, &st));
        MUST(unlink(DIRECTORY "/numbered"));
        if (st.st_ino == wanted)
            return fd;
        close(fd);
        if (st.st_ino > wanted)
            return -1;
    }
    return -1;
}

static void check_text(int fd, const char *text)
{
    char got[64] = "";
    MUST((int)pread(fd, got, sizeof got - 1, 0));
    CHECK(strncmp(got, text, strlen(text)) == 0, "'%s' instead of '%s'", got, text);
}

static int make_file(const char *path, const char *text)
{
    int fd = MUST(open(path, O_RDWR | O_CREAT | O_EXCL, 0600));
    MUST((int)write(fd, text, strlen(text)));
    return fd;
}

int main(void)
{
    MUST(mkdir(DIRECTORY, 0755));
    struct stat st;
    int lower = MUST(open("/proc/self/exe", O_RDONLY));
    MUST(fstat(lower, &st));
    MUST(unlink("/fidelity/file_identity"));
    int twin = make_with_number(st.st_ino);
    if (twin >= 0)
        MUST((int)write(twin, "twin", 4));
    int old = make_file(DIRECTORY "/replaced", "old"), replacement = make_file(DIRECTORY "/new", "new");
    MUST(rename(DIRECTORY "/new", DIRECTORY "/replaced"));
    int misleading = make_file(DIRECTORY "/file (deleted)", "not deleted"), removed = make_file(DIRECTORY "/file", "removed");
    MUST(unlink(DIRECTORY "/file"));
    int again = make_file(DIRECTORY "/again", "first");
    MUST(unlink(DIRECTORY "/again"));
    int second = make_file(DIRECTORY "/again", "second");
    MUST(unlink(DIRECTORY "/again"));
    int sparse = MUST(open(DIRECTORY "/sparse", O_RDWR | O_CREAT | O_EXCL, 0640));
    MUST(ftruncate(sparse, SPARSE));
    MUST((int)pwrite(sparse, "tail", 4, SPARSE - 4096));
    MUST((int)pwrite(sparse, "head", 4, 8192));
    MUST(unlink(DIRECTORY "/sparse"));
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, sparse, 8192);
    CHECK(map != MAP_FAILED, "mmap: %s", strerror(errno));
    int linked = make_file(DIRECTORY "/first-name", "two names");
    MUST(link(DIRECTORY "/first-name", DIRECTORY "/second-name"));
    MUST(unlink(DIRECTORY "/first-name"));
    struct stat linked_before;
    MUST(fstat(linked, &linked_before));
    sync();
    fidelity_ready();
    fidelity_await_go();

    check_text(lower, "\177ELF");
    if (twin >= 0)
        check_text(twin, "twin");
    check_text(old, "old");
    check_text(replacement, "new");
    check_text(misleading, "not deleted");
    check_text(removed, "removed");
    check_text(again, "first");
    check_text(second, "second");
    MUST(fstat(misleading, &st));
    CHECK(st.st_nlink == 1 && access(DIRECTORY "/file (deleted)", F_OK) == 0, "a file that is there was taken for a removed one");
    char text[8] = "";
    CHECK(pread(sparse, text, 4, SPARSE - 4096) == 4 && strcmp(text, "tail") == 0, "the end of the sparse file is '%s'", text);
    MUST(fstat(sparse, &st));
    CHECK(st.st_size == SPARSE && st.st_nlink == 0 && st.st_blocks < 1024, "the sparse file: size %ld, %ld blocks", st.st_size, st.st_blocks);
    CHECK(memcmp(map, "head", 4) == 0, "the mapping of the sparse file differs");
    memcpy(map, fidelity_in_branch() ? "BRAN" : "SOUR", 4);
    CHECK(pread(sparse, text, 4, 8192) == 4 && strcmp(text, fidelity_in_branch() ? "BRAN" : "SOUR") == 0, "mapping and file are different files");
    int fd = MUST(open(DIRECTORY "/replaced", O_RDONLY));
    check_text(fd, "new");
    MUST((int)pwrite(replacement, fidelity_in_branch() ? "b" : "s", 1, 0));
    check_text(fd, fidelity_in_branch() ? "bew" : "sew");
    MUST(fstat(linked, &st));
    CHECK(st.st_ino == linked_before.st_ino && st.st_nlink == 1, "the file that kept one of two names: inode %lu, was %lu", st.st_ino,
          linked_before.st_ino);
    MUST((int)pwrite(linked, fidelity_in_branch() ? "b" : "s", 1, 0));
    CHECK(fidelity_file(DIRECTORY "/second-name")[0] == (fidelity_in_branch() ? 'b' : 's'), "what is written does not show under the name that is left");
    CHECK(access(DIRECTORY "/first-name", F_OK) < 0, "the name that was removed is back");
    fidelity_pass();
}
