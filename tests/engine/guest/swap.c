/*
 * `swap TARGET DIRECTORY…`: exchange each directory with a symbolic link to TARGET, over and over, as fast as it goes. SIGTERM ends it with
 * the directories in their places.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static volatile sig_atomic_t stop;

static void on_term(int number)
{
    (void)number;
    stop = 1;
}

int main(int argc, char **argv)
{
    char links[16][256];
    signal(SIGTERM, on_term);
    for (int i = 2; i < argc && i < 18; i++) {
        snprintf(links[i - 2], sizeof links[0], "%s.link", argv[i]);
        if (symlink(argv[1], links[i - 2]) < 0 || renameat2(AT_FDCWD, argv[i], AT_FDCWD, links[i - 2], RENAME_EXCHANGE) < 0) {
            perror(argv[i]);
            return 1;
        }
        renameat2(AT_FDCWD, argv[i], AT_FDCWD, links[i - 2], RENAME_EXCHANGE);
    }
    puts("done");
    fflush(stdout);
    for (unsigned long round = 0; !stop || round % 2; round++) {
        for (int i = 2; i < argc && i < 18; i++)
            renameat2(AT_FDCWD, argv[i], AT_FDCWD, links[i - 2], RENAME_EXCHANGE);
        usleep(200);        /* a machine with two cores has to do the fork as well */
    }
    return 0;
}
