/*
 * What lies in a network namespace made inside: interfaces, addresses, routes, rules, neighbours. Read by rtnetlink, and made again by the same messages.
 * veth pairs may have their ends in two namespaces of the workspace. In the workspace's own namespace, whose way out the engine makes anew for each branch,
 * that is all that was added to it: programs inside may add nothing there, the host may.
 */
#ifndef TCLONE_NETWORK_H
#define TCLONE_NETWORK_H

#include "namespaces.h"

/* This thread is in the namespace. Fails with "unsupported" for what cannot be made again. */
int network_read(const struct world *world, struct namespace *namespace, struct error *err);
/* Whether the workspace's own namespace holds anything that the engine has not put there: nothing else is kept in the lists. */
bool network_has_additions(const struct network *network);
/* Ops for plan_namespace. */
void network_emit(struct batch *batch, const struct namespace *namespace, const struct namespaces *all);

#endif
