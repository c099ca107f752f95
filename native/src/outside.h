/* Established TCP connections whose other end nobody in the workspace holds: a branch meets them closed. For the doctor alone. */
#ifndef TCLONE_OUTSIDE_H
#define TCLONE_OUTSIDE_H

#include "blockers.h"

#include <netinet/in.h>

struct tcp_end {
    const struct process *process;
    int fd;
    bool listener;                      /* then peer is empty */
    struct sockaddr_in6 local, peer;    /* IPv4 as mapped addresses */
};

struct tcp_ends {
    struct tcp_end *items;
    int count;
};

/* Remember `description` if it is a connected or listening TCP socket. */
void outside_note(struct tcp_ends *ends, const struct description *description);
/* Warn of each end that leads neither to another one nor to a listener in the list, and empty the list. */
void outside_report(struct tcp_ends *ends, struct blockers *warnings);

#endif
