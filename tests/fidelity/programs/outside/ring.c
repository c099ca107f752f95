/* Captures packets through a ring that it has mapped. */
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void)
{
    struct tpacket_req frames = { .tp_block_size = 8192, .tp_block_nr = 2, .tp_frame_size = 2048, .tp_frame_nr = 8 };
    int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    if (setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &frames, sizeof frames) < 0)
        return 1;
    if (mmap(NULL, 16384, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED)
        return 1;
    for (;;)
        pause();
}
