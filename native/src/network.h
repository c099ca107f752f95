/*
 * What lies in a network namespace made inside: interfaces, addresses, routes, rules, neighbours. Read by rtnetlink, and made again by the same messages.
 * veth pairs may have their ends in two namespaces of the workspace.
 */
#ifndef TCLONE_NETWORK_H
#define TCLONE_NETWORK_H

#include "namespaces.h"

/* This thread is in the namespace. Fails with "unsupported" for an interface that cannot be made again. */
int network_read(const struct world *world, struct namespace *namespace, struct error *err);
/* Ops for plan_namespace. */
void network_emit(struct batch *batch, const struct namespace *namespace, const struct namespaces *all);

#endif
