/* Lines about sockets in /proc/PID/net, found by the socket's inode. */
#ifndef TCLONE_SOCKET_TEXT_H
#define TCLONE_SOCKET_TEXT_H

#include <stdint.h>

#include "../world.h"

/*
 * The line of a socket in the table `name` ("netlink", "raw", "raw6") of the network namespace with this cookie; NULL if it is not listed. Each table
 * is read once: nothing in it changes while the source stands still, and a workspace may have ten thousand sockets.
 */
const char *socket_text_line(const char *name, uint64_t namespace, const struct description *description);
/* Cookie of a socket's network namespace; 0 before Linux 5.14. */
uint64_t socket_namespace(int fd);

#endif
