/* Holds half a datagram that only the kernel knows, in a corked UDP socket. */
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int fd = socket(AF_INET, SOCK_DGRAM, 0), on = 1;
    if (setsockopt(fd, IPPROTO_UDP, UDP_CORK, &on, sizeof on) < 0 || sendto(fd, "half", 4, 0, (void *)&to, sizeof to) != 4)
        return 1;
    for (;;)
        pause();
}
