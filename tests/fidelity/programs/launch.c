/* launch PROGRAM...: start each in a session of its own and wait until all have ended; many programs then share one workspace and one fork. */
#include "fidelity.h"

int main(int argc, char **argv)
{
    mkdir(FIDELITY_DIRECTORY, 0777);
    chmod(FIDELITY_DIRECTORY, 0777);
    for (int i = 1; i < argc; i++) {
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            setsid();
            execl(argv[i], argv[i], (char *)NULL);
            fprintf(stderr, "launch: cannot execute %s: %s\n", argv[i], strerror(errno));
            _exit(127);
        }
    }
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    /* Stay, so that results can be read: the workspace ends with this process. */
    for (;;)
        pause();
}
