/* Between network.c and network_links.c. */
#ifndef TCLONE_NETWORK_LINKS_H
#define TCLONE_NETWORK_LINKS_H

#include "namespaces.h"

#include <linux/rtnetlink.h>
#include <net/if.h>

enum message_order { MESSAGE_ADDRESS, MESSAGE_NEIGHBOUR, MESSAGE_ROUTE, MESSAGE_ROUTE_THROUGH, MESSAGE_RULE };

struct network_message {
    int order, number;
    struct nlmsghdr *message;
};

#define LINK_KIND_SIZE 16
#define LINK_ADDRESS_SIZE 32
#define LINK_DATA_SIZE 512

struct link {
    int index, master;          /* master 0 = none */
    uint32_t flags, mtu, queue_length, group;
    char name[IFNAMSIZ], kind[LINK_KIND_SIZE];      /* kind "" = loopback, or one that comes by itself */
    unsigned char address[LINK_ADDRESS_SIZE];
    size_t address_size;
    unsigned char data[LINK_DATA_SIZE];     /* attributes of the kind that are set when it is made */
    size_t data_size;
    int peer;                   /* the other end of a veth pair, by its index (-1 = it is none) … */
    int peer_number;            /* … in the namespace that its own one calls so; -1 = in the same … */
    const struct namespace *peer_namespace;     /* … which is this; NULL = the same */
};

struct network {
    char who[96];               /* for messages: who lives in which namespace */
    bool own;                   /* it is the workspace's own */
    int way_out;                /* number of the engine's interface in the workspace's own namespace; 0 = there is none */
    struct link *links;
    int link_count;
    struct network_message *messages;
    int message_count;
    char *rules;                /* a transaction of nftables; NULL = there are none */
    size_t rules_size;
    char *table;                /* the first of them, for messages */
    unsigned char table_family;
};

struct network_socket {
    uint64_t fd;                /* cell */
    uint64_t answer;            /* room */
};
#define NETWORK_ANSWER 8192

typedef int (*network_take)(struct nlmsghdr *message, void *to, struct error *err);
/* Call `take` for each message of a list, which is asked for by a message with `head` zeroed bytes behind its header. */
int network_dump(int fd, int type, size_t head, network_take take, void *to, struct error *err);
/* The same, once another question was sent. */
int network_receive(int fd, network_take take, void *to, struct error *err);
/* Of a message with a head of that size; NULL = it has none. */
const struct rtattr *network_attribute(const struct nlmsghdr *message, size_t head, int type);
/* Send a message with NLM_F_ACK, and expect success. */
void network_emit_message(struct batch *batch, const struct network_socket *socket, const void *message, size_t size, const char *what);

int network_links_read(const struct world *world, int fd, struct network *network, struct error *err);
/* Make them; then, once all other ends are there, connect them and bring them up. */
void network_links_emit(struct batch *batch, const struct network_socket *socket, const struct namespace *namespace);
void network_links_emit_states(struct batch *batch, const struct network_socket *socket, const struct network *network);

#endif
