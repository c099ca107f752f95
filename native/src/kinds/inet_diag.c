/* Sockets that no process has a descriptor of, as sock_diag(7) shows them: ends that were closed, ends that were not accepted yet. */
#include "inet.h"
#include "sock_diag.h"
#include "../descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define RECEIVE_SIZE 32768

struct diag_request {
    struct nlmsghdr header;
    struct inet_diag_req_v2 body;
};

/* One sock_diag socket for the network namespace asked last; nearly always there is only one. */
static int diag_for(struct world *world, const struct inet_socket *socket, struct error *err)
{
    static int fd = -1;
    static uint64_t of;
    if (fd >= 0 && of == socket->namespace)
        return fd;
    close_fd(&fd);
    AUTO_CLOSE int namespace = ioctl(socket->description->local, SIOCGSKNS);
    fd = sock_diag_open(namespace >= 0 ? namespace : world->net_ns, err);
    of = socket->namespace;
    return fd;
}

static void put_address(uint32_t *words, uint16_t *port, const union inet_address *address)
{
    *port = address->v4.sin_port;
    if (address->any.sa_family == AF_INET)
        words[0] = address->v4.sin_addr.s_addr;
    else
        memcpy(words, &address->v6.sin6_addr, sizeof address->v6.sin6_addr);
}

static int ask(int fd, const struct diag_request *request, const struct inet_socket *socket, struct error *err)
{
    if (send(fd, request, sizeof *request, 0) == (ssize_t)sizeof *request)
        return 0;
    return fail_errno(err, "%s: sock_diag does not take a request about it", socket->label);
}

static ssize_t receive(int fd, char *buffer, const struct inet_socket *socket, struct error *err)
{
    ssize_t got;
    do
        got = recv(fd, buffer, RECEIVE_SIZE, 0);
    while (got < 0 && errno == EINTR);
    return got > 0 ? got : fail_errno(err, "%s: sock_diag does not answer", socket->label);
}

int inet_diag_mirror(struct world *world, const struct inet_socket *socket, struct inet_found *found, struct error *err)
{
    *found = (struct inet_found){ 0 };
    int fd = diag_for(world, socket, err);
    if (fd < 0)
        return -1;
    struct diag_request request = {
        .header = { .nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST },
        .body = { .sdiag_family = (uint8_t)socket->domain, .sdiag_protocol = IPPROTO_TCP, .idiag_states = ~0u,
                  .id.idiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE } },
    };
    put_address(request.body.id.idiag_src, &request.body.id.idiag_sport, &socket->peer);
    put_address(request.body.id.idiag_dst, &request.body.id.idiag_dport, &socket->local);
    char buffer[RECEIVE_SIZE];
    if (ask(fd, &request, socket, err) < 0 || receive(fd, buffer, socket, err) < 0)
        return -1;
    const struct nlmsghdr *header = (const void *)buffer;
    if (header->nlmsg_type == NLMSG_ERROR)
        return 0;               /* ENOENT: nobody is there any more */
    const struct inet_diag_msg *message = NLMSG_DATA(header);
    /* Without a connection the kernel finds the listener. */
    if (message->idiag_state == STREAM_LISTEN || message->id.idiag_dport != request.body.id.idiag_dport)
        return 0;
    *found = (struct inet_found){ message->idiag_state, message->idiag_inode, message->idiag_wqueue };
    return 0;
}

/* ---- shutdown of datagram sockets ---- */

struct shutdown_entry {
    uint32_t inode;
    uint8_t directions;
};

/* Those of one family and protocol in the network namespace asked last. Without udp_diag there are none. */
struct shutdowns {
    bool known;
    uint64_t namespace;
    int domain, protocol;
    struct shutdown_entry *list;
    int count;
};

static void add_shutdown(struct shutdowns *all, const struct nlmsghdr *header)
{
    const struct inet_diag_msg *message = NLMSG_DATA(header);
    const struct rtattr *attribute = (const struct rtattr *)(message + 1);
    size_t left = header->nlmsg_len - NLMSG_LENGTH(sizeof *message);
    for (; RTA_OK(attribute, left); attribute = RTA_NEXT(attribute, left)) {
        uint8_t directions = *(const uint8_t *)RTA_DATA(attribute);
        if (attribute->rta_type != INET_DIAG_SHUTDOWN || directions == 0)
            continue;
        if ((all->count & (all->count - 1)) == 0)
            all->list = must_grow(all->list, (size_t)(all->count * 2 + 1) * sizeof *all->list);
        all->list[all->count++] = (struct shutdown_entry){ message->idiag_inode, directions };
    }
}

static int list_shutdowns(struct shutdowns *all, int fd, const struct inet_socket *socket, struct error *err)
{
    struct diag_request request = {
        .header = { .nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
        .body = { .sdiag_family = (uint8_t)socket->domain, .sdiag_protocol = (uint8_t)socket->protocol, .idiag_states = ~0u },
    };
    if (ask(fd, &request, socket, err) < 0)
        return -1;
    for (;;) {
        char buffer[RECEIVE_SIZE];
        ssize_t got = receive(fd, buffer, socket, err);
        if (got < 0)
            return -1;
        size_t left = (size_t)got;
        for (const struct nlmsghdr *header = (const void *)buffer; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
            if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR)
                return 0;
            add_shutdown(all, header);
        }
    }
}

int inet_diag_shutdown(struct world *world, struct inet_socket *socket, struct error *err)
{
    static struct shutdowns all;
    if (!all.known || all.namespace != socket->namespace || all.domain != socket->domain || all.protocol != socket->protocol) {
        int fd = diag_for(world, socket, err);
        if (fd < 0)
            return -1;
        free(all.list);
        all = (struct shutdowns){ .known = true, .namespace = socket->namespace, .domain = socket->domain, .protocol = socket->protocol };
        if (list_shutdowns(&all, fd, socket, err) < 0)
            return -1;
    }
    for (int i = 0; i < all.count; i++)
        if (all.list[i].inode == (uint32_t)socket->description->st.st_ino)
            socket->shut_down = all.list[i].directions;
    return 0;
}

/* ---- listeners ---- */

static int count_waiting(const char *buffer, size_t left, bool *done)
{
    int waiting = 0;
    for (const struct nlmsghdr *header = (const void *)buffer; NLMSG_OK(header, left); header = NLMSG_NEXT(header, left)) {
        if (header->nlmsg_type == NLMSG_DONE || header->nlmsg_type == NLMSG_ERROR)
            *done = true;
        else        /* of a listener this is the length of its queue */
            waiting += ((const struct inet_diag_msg *)NLMSG_DATA(header))->idiag_rqueue > 0;
    }
    return waiting;
}

int inet_diag_unaccepted(int fd, struct error *err)
{
    int waiting = 0;
    for (int i = 0; i < 2; i++) {
        struct diag_request request = {
            .header = { .nlmsg_len = sizeof request, .nlmsg_type = SOCK_DIAG_BY_FAMILY, .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP },
            .body = { .sdiag_family = i ? AF_INET6 : AF_INET, .sdiag_protocol = IPPROTO_TCP, .idiag_states = 1u << STREAM_LISTEN },
        };
        if (send(fd, &request, sizeof request, 0) != (ssize_t)sizeof request)
            return fail_errno(err, "sock_diag does not take a request about listeners");
        for (bool done = false; !done;) {
            char buffer[RECEIVE_SIZE];
            ssize_t got = recv(fd, buffer, sizeof buffer, 0);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                return fail_errno(err, "sock_diag does not list the listeners");
            waiting += count_waiting(buffer, (size_t)got, &done);
        }
    }
    return waiting > 0;
}
