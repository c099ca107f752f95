/*
 * Before the freeze: a moment for what nobody can read from outside to be taken by whom it is for. inotify events, and bytes sent to a listener that
 * has not accepted yet, are there for microseconds as a rule; a branch that met them would lack them.
 */
#ifndef TCLONE_SETTLE_H
#define TCLONE_SETTLE_H

#include "error.h"

/* Look at this instance of inotify or fanotify, too; takes the descriptor over. */
void settle_watch(int watcher);
/* There are sockets: without any nobody needs to look whether they have been accepted. */
void settle_sockets(void);
/* Wait, for some 20 ms at most, until all of it is read. The source runs meanwhile. */
int settle(int net_ns, struct error *err);

#endif
