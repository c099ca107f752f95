/* Socket options of one socket that differ from those of a fresh one, and the ops that set them again. */
#ifndef TCLONE_SOCK_OPTIONS_H
#define TCLONE_SOCK_OPTIONS_H

#include "../plan.h"

#define OPTION_MAXIMUM 48       /* IP_OPTIONS take up to 40 bytes */

struct socket_option {
    int level, name;
    uint32_t size;
    char value[OPTION_MAXIMUM];
};

struct socket_options {
    struct socket_option *list;
    int count;
    int send_buffer, receive_buffer;    /* SO_SNDBUF and SO_RCVBUF as read: twice what was asked for */
    void *filter;               /* classic BPF program (struct sock_filter[filter_count]), or NULL */
    int filter_count;
};

struct option_name {
    int level, name;
    uint32_t size;
    bool size_varies;           /* a fresh socket reports it with no bytes at all: SO_BINDTODEVICE, IP_OPTIONS */
};

/* Read the options in `names` (ends with size 0) of description->local; `type` and `protocol` as socket(2) takes them. */
int socket_options_read(struct socket_options *options, const struct description *description, const struct option_name *names, int domain,
                        int type, int protocol, struct error *err);
/* The value of an option that was read and differs from the default, or NULL. */
const struct socket_option *socket_options_find(const struct socket_options *options, int level, int name);
/* Emit setsockopt for one, and for all of them and the packet filter, on descriptor `fd`. */
void socket_option_put(struct batch *batch, uint64_t fd, const struct socket_option *option, const char *what);
void socket_options_emit_filter(struct batch *batch, const struct socket_options *options, uint64_t fd, const char *what);
void socket_options_emit(struct batch *batch, const struct socket_options *options, uint64_t fd, const char *what);
void socket_option_emit(struct batch *batch, uint64_t fd, int level, int name, const void *value, uint32_t size, const char *what);

/* Until a branch is complete a filter keeps out what is only part of making it. */
void socket_options_emit_deaf(struct batch *batch, uint64_t fd, const char *what);
void socket_options_emit_undeaf(struct batch *batch, uint64_t fd, const char *what);

int socket_number(int fd, int name);    /* an int option of SOL_SOCKET, or -1 */
/* Refuse an eBPF program that filters what the socket receives: it cannot be read back. */
int socket_check_filter(const struct description *description, struct error *err);

#endif
