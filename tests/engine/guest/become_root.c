/* A setuid program, as sudo is: becomes root for good, and runs a command. */
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    if (argc < 2 || getuid() == 0 || geteuid() != 0) {
        fprintf(stderr, "started by %d, is %d\n", (int)getuid(), (int)geteuid());
        return 99;
    }
    if (setgid(0) < 0 || setuid(0) < 0) {
        perror("become root");
        return 98;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 97;
}
