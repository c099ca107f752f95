#include "settle.h"
#include "kinds/sock_diag.h"

#include <stdbool.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#define LOOKS 10
#define FIRST_PAUSE_NS 200000   /* then a half more each time: 22 ms in all */
#define MAX_INSTANCES 1024

static int *instances;
static int instance_count;
static bool has_sockets;

void settle_watch(int inotify)
{
    if (instance_count == MAX_INSTANCES) {
        close(inotify);
        return;
    }
    instances = must_grow(instances, (size_t)(instance_count + 1) * sizeof *instances);
    instances[instance_count++] = inotify;
}

void settle_sockets(void)
{
    has_sockets = true;
}

static bool has_events(void)
{
    for (int i = 0; i < instance_count; i++) {
        int bytes = 0;
        if (ioctl(instances[i], FIONREAD, &bytes) == 0 && bytes > 0)
            return true;
    }
    return false;
}

/* A client in some listener's queue that has sent something already. */
static bool sent_early(const struct unix_diag *list, int count)
{
    struct byte_index clients = { 0 };
    bool found = false;
    for (int i = 0; i < count; i++)
        if (list[i].pending_count == 0 && list[i].limit > 0 && list[i].inode)
            byte_index_put(&clients, &list[i].inode, sizeof list[i].inode, (void *)&list[i]);
    for (int i = 0; i < count && !found; i++)
        for (int k = 0; k < list[i].pending_count && !found; k++)
            found = byte_index_find(&clients, &list[i].pending[k], sizeof list[i].pending[k]);
    free(clients.entries);
    return found;
}

static int has_unaccepted(int diag, struct error *err)
{
    int waiting = inet_diag_unaccepted(diag, err);
    if (waiting)
        return waiting;
    struct unix_diag *list;
    int count = sock_diag_list(diag, &list, err);
    if (count < 0)
        return -1;
    bool found = sent_early(list, count);
    for (int i = 0; i < count; i++)
        free(list[i].pending);
    free(list);
    return found;
}

int settle(int net_ns, struct error *err)
{
    if (!has_sockets && !instance_count)
        return 0;
    AUTO_CLOSE int diag = sock_diag_open(net_ns, err);
    if (diag < 0)
        return -1;
    struct timespec pause = { 0, FIRST_PAUSE_NS };
    int unaccepted = has_sockets;
    for (int look = 0; look < LOOKS; look++) {
        unaccepted = unaccepted ? has_unaccepted(diag, err) : 0;
        if (unaccepted < 0)
            return -1;
        if (!unaccepted && !has_events())
            break;
        nanosleep(&pause, NULL);
        pause.tv_nsec += pause.tv_nsec / 2;
    }
    for (int i = 0; i < instance_count; i++)
        close(instances[i]);
    instance_count = 0;
    return 0;
}
