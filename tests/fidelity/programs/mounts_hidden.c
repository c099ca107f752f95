/* A tmpfs that another one hides altogether, in a user namespace of its own: both have their content, and the hidden one comes to light again. */
#include "mounts.h"

#define HERE "/tmp/fidelity-mounts-hidden"

static void expect_file(const char *path, const char *content)
{
    struct stat st;
    CHECK(stat(path, &st) == 0 && st.st_size == (off_t)strlen(content), "%s is not there or has %ld bytes", path, (long)st.st_size);
    CHECK(strcmp(fidelity_file(path), content) == 0, "%s holds something else", path);
}

int main(void)
{
    enter_namespaces(0);
    MUST(mkdir(HERE, 0755));
    MUST(mkdir(HERE "/below", 0755));
    MUST(mount("inner", HERE "/below", "tmpfs", 0, "mode=750"));
    make_file(HERE "/below/file", "under a cover", 0640);
    MUST(mount("cover", HERE, "tmpfs", 0, NULL));
    make_file(HERE "/file", "on top", 0600);
    fidelity_ready();
    fidelity_await_go();
    expect_file(HERE "/file", "on top");
    CHECK(access(HERE "/below", F_OK) < 0, "what is hidden can be seen");
    MUST(umount(HERE));
    CHECK(access(HERE "/file", F_OK) < 0, "the cover stays");
    expect_file(HERE "/below/file", "under a cover");
    MUST(umount(HERE "/below"));
    fidelity_pass();
}
