/* Holds a socket of a family that cannot be forked. */
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    if (socket(AF_VSOCK, SOCK_STREAM, 0) < 0)
        return 1;
    for (;;)
        pause();
}
