/* Stands in a directory, or has one open ("open"), whose path is longer than the kernel can tell. */
#include "../programs/fidelity.h"

int main(int argc, char **argv)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    MUST(chdir("/tmp"));
    for (int i = 0; i < 300; i++) {
        MUST(mkdir("a-directory-in-a-very-deep-tree", 0755));
        MUST(chdir("a-directory-in-a-very-deep-tree"));
    }
    if (argc > 1 && strcmp(argv[1], "open") == 0) {
        MUST(open(".", O_RDONLY | O_DIRECTORY));
        MUST(chdir("/"));
    }
    fidelity_ready();
    for (int i = 0; i < 600 && !fidelity_may_go(); i++)
        fidelity_sleep_ms(FIDELITY_POLL_MS);
    return 0;
}
