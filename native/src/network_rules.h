/* Packet filters of a network namespace, which are made again, and what of filters and traffic control is refused. */
#ifndef TCLONE_NETWORK_RULES_H
#define TCLONE_NETWORK_RULES_H

#include "network_links.h"

/*
 * This thread is in the namespace; `route` is a socket of rtnetlink there. Fails with "unsupported" and the name of the first table or queueing discipline
 * that cannot be made again. The engine's own table in the workspace's own namespace counts for nothing: each branch has one anyway.
 */
int network_rules_read(const struct world *world, int route, struct network *network, struct error *err);
/* Once all interfaces are there; `answer` is room as in struct network_socket. */
void network_rules_emit(struct batch *batch, const struct network *network, uint64_t answer);

#endif
