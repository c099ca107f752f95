/* What lies in a nested namespace: id maps, interfaces, names. */
#ifndef TCLONE_NAMESPACE_CONTENTS_H
#define TCLONE_NAMESPACE_CONTENTS_H

#include "namespaces.h"

/* Fails with "unsupported" when it holds something that cannot be made again. */
int namespace_contents_read(const struct world *world, struct namespace *namespace, struct error *err);
/*
 * The same for the workspace's own network namespace, which the host may have added something to. It is looked at before the freeze, and once more in it
 * only where something was added: a look takes 0.1 ms, or as long as somebody holds the kernel's lock of all network interfaces.
 */
int namespace_own_network_read(const struct world *world, struct error *err);
/* Ops for plan_namespace. */
void namespace_contents_emit(struct plan *plan, const struct namespace *namespace);

#endif
