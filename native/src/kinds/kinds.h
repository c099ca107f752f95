#ifndef TCLONE_KINDS_H
#define TCLONE_KINDS_H

#include "../plan.h"

extern const struct fd_kind kind_pidfd, kind_eventfd, kind_epoll, kind_timerfd, kind_signalfd, kind_inotify, kind_pipe, kind_unix, kind_inet,
    kind_netlink, kind_packet, kind_other_socket, kind_tty, kind_device, kind_file, kind_refused, kind_mqueue, kind_namespace, kind_fanotify;

#endif
