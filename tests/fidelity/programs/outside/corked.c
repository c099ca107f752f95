/* UDP sockets that hold half a datagram each, which only the kernel knows: one is corked, one was told of more to come. And one that has sent it all. */
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    struct sockaddr_in6 to6 = { .sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    int corked = socket(AF_INET, SOCK_DGRAM, 0), more = socket(AF_INET6, SOCK_DGRAM, 0), whole = socket(AF_INET6, SOCK_DGRAM, 0), on = 1;
    if (setsockopt(corked, IPPROTO_UDP, UDP_CORK, &on, sizeof on) < 0 || sendto(corked, "half", 4, 0, (void *)&to, sizeof to) != 4)
        return 1;
    if (connect(more, (void *)&to6, sizeof to6) < 0 || send(more, "half", 4, MSG_MORE) != 4)
        return 2;
    if (connect(whole, (void *)&to6, sizeof to6) < 0 || send(whole, "half", 4, MSG_MORE) != 4 || send(whole, "", 0, 0) != 0)
        return 3;
    for (;;)
        pause();
}
