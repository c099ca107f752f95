/* Every kind of descriptor, in the order in which they are asked. */
#include "kinds.h"

const struct fd_kind *const fd_kinds[] = {
    &kind_pidfd,        /* before file: its inode is a regular file of pidfs */
    &kind_eventfd,
    &kind_epoll,
    &kind_timerfd,
    &kind_signalfd,
    &kind_inotify,
    &kind_fanotify,
    &kind_pipe,
    &kind_unix,
    &kind_inet,
    &kind_netlink,
    &kind_packet,
    &kind_other_socket,  /* refuses every other family by name */
    &kind_tty,
    &kind_device,
    &kind_namespace,    /* before file, too */
    &kind_mqueue,       /* before file: a queue is a regular file of its file system */
    &kind_file,
    &kind_refused,      /* takes whatever is left, and refuses it by name */
    NULL,
};
