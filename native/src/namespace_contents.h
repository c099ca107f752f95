/* What lies in a nested namespace: id maps, interfaces, names. */
#ifndef TCLONE_NAMESPACE_CONTENTS_H
#define TCLONE_NAMESPACE_CONTENTS_H

#include "namespaces.h"

/* Fails with "unsupported" when it holds something that cannot be made again. */
int namespace_contents_read(const struct world *world, struct namespace *namespace, struct error *err);
/* The same for the workspace's own network namespace, which the host may have added something to. */
int namespace_own_network_read(const struct world *world, struct error *err);
/* Ops for plan_namespace. */
void namespace_contents_emit(struct plan *plan, const struct namespace *namespace);

#endif
