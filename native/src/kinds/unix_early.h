/*
 * What a client has sent to a unix listener that has not accepted it: it lies in the queue of a socket that nobody has a descriptor of. A BPF iterator
 * over our own descriptors, of which one is a duplicate of the client's, follows it to its other end and copies what is there.
 */
#ifndef TCLONE_UNIX_EARLY_H
#define TCLONE_UNIX_EARLY_H

#include "unix_socket.h"

/* The messages, in order; *messages is the caller's. Returns their number, or -1 if they cannot be told: large ones, ones with descriptors in them. */
int unix_early_read(const struct unix_socket *client, struct unix_message **messages);

#endif
