#include "kinds.h"
#include "unix_socket.h"
#include "../descriptors.h"
#include "../doubt.h"
#include "../namespace_plan.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* Those that have an effect on a unix socket; each costs a system call a socket while the source stands still. */
static const struct option_name names[] = {
    { SOL_SOCKET, SO_PASSCRED, sizeof(int) },
    { SOL_SOCKET, SO_PASSSEC, sizeof(int) },
    { SOL_SOCKET, 76 /* SO_PASSPIDFD */, sizeof(int) },
    { SOL_SOCKET, 83 /* SO_PASSRIGHTS */, sizeof(int) },
    { SOL_SOCKET, SO_SNDBUF, sizeof(int) },
    { SOL_SOCKET, SO_RCVBUF, sizeof(int) },
    { SOL_SOCKET, SO_RCVLOWAT, sizeof(int) },
    { SOL_SOCKET, SO_RCVTIMEO, sizeof(struct timeval) },
    { SOL_SOCKET, SO_SNDTIMEO, sizeof(struct timeval) },
    { SOL_SOCKET, SO_PRIORITY, sizeof(int) },
    { SOL_SOCKET, SO_TIMESTAMP, sizeof(int) },
    { SOL_SOCKET, SO_PEEK_OFF, sizeof(int) },
    { 0, 0, 0 },
};

bool unix_is_named(const struct unix_name *name)
{
    return name->length > offsetof(struct sockaddr_un, sun_path);
}

bool unix_is_path(const struct unix_name *name)
{
    return unix_is_named(name) && name->address[offsetof(struct sockaddr_un, sun_path)] != 0;
}

int unix_name_scope(const struct unix_name *name, const struct namespace *net)
{
    return net && net->nested && !unix_is_path(name) ? net->index : 0;
}

bool unix_same_name(const struct unix_name *a, const struct unix_name *b)
{
    return a->length == b->length && memcmp(a->address, b->address, a->length) == 0;
}

static bool unix_match(const struct description *description)
{
    return S_ISSOCK(description->st.st_mode) && !(description->flags & O_PATH) && socket_number(description->local, SO_DOMAIN) == AF_UNIX;
}

/* ---- sock_diag ---- */

static int add_namespace(struct unix_table *table, int net_ns, struct error *err)
{
    AUTO_CLOSE int fd = sock_diag_open(net_ns, err);
    if (fd < 0)
        return -1;
    struct unix_diag *list;
    int count = sock_diag_list(fd, &list, err);
    if (count < 0)
        return -1;
    for (int i = 0; i < count; i++)
        if (list[i].inode)
            byte_index_put(&table->diag_by_inode, &list[i].inode, sizeof list[i].inode, &list[i]);
    return 0;
}

/* One listing serves the whole world; sockets from other network namespaces (sandboxes) cost one more for each of those. */
static int find_diag(struct unix_table *table, const struct description *description, struct unix_diag *found, struct error *err)
{
    uint32_t inode = (uint32_t)description->st.st_ino;
    struct unix_diag *diag = byte_index_find(&table->diag_by_inode, &inode, sizeof inode);
    if (!diag) {
        AUTO_CLOSE int other = ioctl(description->local, SIOCGSKNS);
        if (other < 0)
            return fail_errno(err, "%s: cannot tell its network namespace", description_label(description));
        if (add_namespace(table, other, err) < 0)
            return -1;
        diag = byte_index_find(&table->diag_by_inode, &inode, sizeof inode);
    }
    if (!diag)
        return fail(err, "internal", "%s: the kernel does not list it", description_label(description));
    *found = *diag;
    return 0;
}

static struct unix_table *table_of(struct world *world, struct error *err)
{
    if (!world->unix_sockets) {
        struct unix_table *table = must_alloc(sizeof *table);
        if (add_namespace(table, world->net_ns, err) < 0)
            return NULL;
        world->unix_sockets = table;
    }
    return world->unix_sockets;
}

/* ---- capture ---- */

static void read_name(int fd, int (*ask)(int, struct sockaddr *, socklen_t *), struct unix_name *name, const char *who)
{
    char address[sizeof(struct sockaddr_storage)];
    socklen_t length = sizeof address;
    if (ask(fd, (struct sockaddr *)address, &length) < 0) {
        doubt(ANSWERS(ENOTCONN), "%s: cannot read its name", who);
        return;
    }
    if (length > NAME_MAXIMUM)
        return;
    name->length = length;
    memcpy(name->address, address, length);
}

static void read_credentials(const struct world *world, struct unix_socket *socket)
{
    socklen_t size = sizeof socket->peer_credentials;
    struct ucred *credentials = &socket->peer_credentials;
    int result = getsockopt(socket->description->local, SOL_SOCKET, SO_PEERCRED, credentials, &size);
    if (result < 0)
        doubt(ANSWERS(ENODATA), "%s: cannot read its peer's credentials", socket->label);
    if (result < 0 || credentials->uid == (uid_t)-1) {
        *credentials = (struct ucred){ 0 };
        return;
    }
    int host = credentials->pid;
    credentials->pid = host ? unix_pid_in_workspace(world, host) : 0;
    if (host && !credentials->pid)
        socket->unresolved_pid = host;
}

static void read_groups(struct unix_socket *socket)
{
    gid_t few[64];
    socklen_t size = sizeof few;
    int fd = socket->description->local;
    struct unix_groups *groups = &socket->peer_groups;
    int result = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, few, &size);
    if (result < 0 && errno != ERANGE) {    /* no peer was ever recorded */
        doubt(ANSWERS(ENODATA, ENOTCONN, ENOPROTOOPT), "%s: cannot read its peer's groups", socket->label);
        return;
    }
    groups->list = must_alloc(size ? size : 1);
    if (result == 0)
        memcpy(groups->list, few, size);
    else if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups->list, &size) < 0) {
        doubt(ANSWERS(0), "%s: cannot read its peer's groups", socket->label);
        return;
    }
    groups->count = (int)(size / sizeof(gid_t));
}

static int unix_capture(struct world *world, struct description *description, struct error *err)
{
    struct unix_table *table = table_of(world, err);
    if (!table)
        return -1;
    struct unix_socket *socket = description->data = must_alloc(sizeof *socket);
    socket->description = description;
    socket->label = must_copy_string(description_label(description));
    if (find_diag(table, description, &socket->diag, err) < 0)
        return -1;
    if (namespace_of_unix_socket(world, description->local, &socket->net, err) < 0)
        return -1;
    socket->type = socket_number(description->local, SO_TYPE);
    socket->listening = socket_number(description->local, SO_ACCEPTCONN) == 1;
    read_name(description->local, getsockname, &socket->name, socket->label);
    if (socket->diag.has_peer)
        read_name(description->local, getpeername, &socket->peer_name, socket->label);
    read_credentials(world, socket);
    read_groups(socket);
    if (socket_options_read(&socket->options, description, names, AF_UNIX, socket->type, 0, err) < 0)
        return -1;
    if (unix_is_path(&socket->name))
        socket->place = unix_place_find(world, socket);
    table->sockets = must_grow(table->sockets, (size_t)(table->count + 1) * sizeof *table->sockets);
    table->sockets[table->count++] = socket;
    byte_index_put(&table->by_inode, &socket->diag.inode, sizeof socket->diag.inode, socket);
    return socket->listening ? 0 : unix_queue_read(world, socket, err);
}

/* ---- emit: all sockets at once, since they depend on one another ---- */

static int unix_emit(struct plan *plan, const struct description *description, enum stage stage, struct error *err)
{
    struct unix_table *table = plan->world->unix_sockets;
    if (description->data != table->sockets[0])
        return 0;
    switch (stage) {
    case STAGE_MAKE:
        return unix_emit_make(plan, table, err);
    case STAGE_CONNECT:
        return unix_emit_connect(plan, table, err);
    case STAGE_FILL:
        unix_emit_fill(plan, table);
        return 0;
    case STAGE_WATCH:
        unix_emit_finish(plan, table);
        return 0;
    default:
        return 0;
    }
}

const struct fd_kind kind_unix = {
    .name = "unix socket",
    .match = unix_match,
    .capture = unix_capture,
    .link = unix_link,
    .emit = unix_emit,
};
