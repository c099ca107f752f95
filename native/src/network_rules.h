/* Packet filters and traffic control of a network namespace: what no branch would have is refused. */
#ifndef TCLONE_NETWORK_RULES_H
#define TCLONE_NETWORK_RULES_H

#include "network_links.h"

/*
 * This thread is in the namespace; `route` is a socket of rtnetlink there. Fails with "unsupported" and the name of the first table
 * or queueing discipline. The engine's own table in the workspace's own namespace is none of them.
 */
int network_rules_check(int route, struct network *network, struct error *err);

#endif
