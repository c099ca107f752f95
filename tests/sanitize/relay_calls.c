/*
 * Calls of the relay's functions in random order, while its thread carries what both peers of each link send: for ThreadSanitizer and AddressSanitizer.
 *
 *     relay_calls ROUNDS SEED
 */
#include "relay.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINKS 16

struct played {
    uint64_t number;
    int client, inner, upstream;    /* the peers' ends; -1: closed, or not there yet */
};

static struct relay *relay;
static struct played all[LINKS];
static char bytes[30000];
static unsigned gone;

static int connection(int *theirs)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) < 0)
        abort();
    *theirs = ends[1];
    return ends[0];
}

static void drop(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void begin(struct played *one)
{
    *one = (struct played){ 0, -1, -1, -1 };
    int fd = connection(&one->client);
    one->number = relay_accept(relay, fd, false, 100);
    if (!one->number)
        abort();
    relay_attach(relay, one->number, connection(&one->inner));
}

static void act(struct played *one)
{
    struct relay_early early = { .up = (const uint8_t *)bytes, .up_size = 100 };
    struct relay_counts counts;
    int *other = one->upstream >= 0 ? &one->upstream : &one->inner;
    switch (rand() % 12) {
    case 0:
        relay_hold(relay, one->number);
        if (one->upstream < 0)
            relay_switch(relay, one->number, connection(&one->upstream), &early);
        break;
    case 1: if (rand() % 10 == 0) relay_end(relay, one->number, (const uint8_t *)"\x88\x02\x03\xe8", 4, 100); break;
    case 2: if (rand() % 20 == 0) relay_abort(relay, one->number); break;
    case 3: relay_count(relay, one->number, &counts); relay_descriptor(relay, one->number, 1); break;
    case 4: if (rand() % 20 == 0) drop(&one->client); break;
    case 5: if (rand() % 20 == 0) drop(other); break;
    case 6: case 7: if (one->client >= 0) send(one->client, bytes, (size_t)rand() % sizeof bytes, MSG_NOSIGNAL); break;
    case 8: case 9: if (*other >= 0) send(*other, bytes, (size_t)rand() % sizeof bytes, MSG_NOSIGNAL); break;
    case 10: if (*other >= 0) recv(*other, bytes, sizeof bytes, MSG_DONTWAIT); break;
    case 11: if (one->client >= 0) recv(one->client, bytes, sizeof bytes, MSG_DONTWAIT); break;
    }
}

static void hear(void)
{
    struct relay_event event;
    while (relay_next(relay, &event)) {
        for (int i = 0; i < LINKS && event.kind == RELAY_GONE; i++) {
            if (all[i].number != event.link)
                continue;
            drop(&all[i].client);
            drop(&all[i].inner);
            drop(&all[i].upstream);
            all[i].number = 0;
            gone++;
        }
    }
}

int main(int argc, char **argv)
{
    char why[200];
    relay = relay_open(4 * LINKS, why, sizeof why);
    if (argc != 3 || !relay)
        return 2;
    srand((unsigned)atoi(argv[2]));
    memset(bytes, 0x82, sizeof bytes);
    for (long round = atol(argv[1]); round > 0; round--) {
        struct played *one = &all[rand() % LINKS];
        if (!one->number)
            begin(one);
        act(one);
        hear();
    }
    relay_close(relay);
    for (int i = 0; i < LINKS; i++) {
        if (!all[i].number)
            continue;
        drop(&all[i].client);
        drop(&all[i].inner);
        drop(&all[i].upstream);
    }
    printf("%u links came and went\n", gone);
    return 0;
}
