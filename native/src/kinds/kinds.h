#ifndef TCLONE_KINDS_H
#define TCLONE_KINDS_H

#include "../plan.h"

extern const struct fd_kind kind_pidfd, kind_eventfd, kind_epoll, kind_timerfd, kind_signalfd, kind_inotify, kind_pipe, kind_unix, kind_inet,
    kind_netlink, kind_packet, kind_other_socket, kind_tty, kind_device, kind_file, kind_refused, kind_mqueue, kind_namespace, kind_fanotify;

/*
 * Pidfds of single threads (PIDFD_THREAD) are opened by each process that has them, once all threads are there; until then a pidfd of the whole process
 * stands in their place. Between the start of a process's threads and its parts.
 */
void pidfd_emit_of_threads(struct batch *batch, const struct process *process, const char *label);
bool pidfd_is_of_thread(const struct description *description);

#endif
