/* livefork's helper in a branch's pid namespace, which chooses pids for processes that may not (struct arena_service). */
#ifndef TCLONE_NAMESPACE_SERVICE_H
#define TCLONE_NAMESPACE_SERVICE_H

#include "branch.h"
#include "rebuild.h"

/* Does nothing where no namespaces are nested. */
int namespace_service_start(const struct world *world, const struct compiled *compiled, struct branch *branch, struct error *err);
/* Once all threads of the branch exist, or it failed. */
void namespace_service_stop(struct branch *branch);

#endif
