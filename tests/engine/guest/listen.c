/* Listens and stays: listen NAME ADDRESS FIRST [COUNT]. The process calls itself NAME. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

static int listener(const char *address, int port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((unsigned short)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    int is_six = strchr(address, ':') != NULL;
    int fd = socket(is_six ? AF_INET6 : AF_INET, SOCK_STREAM, 0);
    const struct sockaddr *name = is_six ? (const struct sockaddr *)&six : (const struct sockaddr *)&four;

    if (inet_pton(is_six ? AF_INET6 : AF_INET, address, is_six ? (void *)&six.sin6_addr : (void *)&four.sin_addr) != 1)
        return -1;
    if (fd < 0 || bind(fd, name, is_six ? sizeof six : sizeof four) < 0 || listen(fd, 16) < 0)
        return -1;
    return fd;
}

int main(int argc, char **argv)
{
    int count = argc > 4 ? atoi(argv[4]) : 1;

    for (int number = 0; number < count; number++) {
        if (listener(argv[2], atoi(argv[3]) + number) < 0) {
            perror("listen");
            return 1;
        }
    }
    prctl(PR_SET_NAME, argv[1]);
    puts("done");
    fflush(stdout);
    pause();
    return 0;
}
