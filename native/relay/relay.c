#include "relay.h"
#include "link.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* How exactly deadlines are kept. */
#define TICK_MS 50
#define EVENTS 64
/* A number of the epoll events that is no link's: links begin at 1. */
#define WAKE 0

/* Links are found by number: the slot below, how often it was used above, so that a number is never given twice. */
#define SLOT_BITS 20
#define SLOT_MASK ((1u << SLOT_BITS) - 1)

struct slot {
    struct link *link;
    uint64_t uses;
    unsigned next_free;
};

struct relay {
    pthread_mutex_t lock;       /* held by whoever works on anything below; the thread lets go of it only to wait */
    pthread_t thread;
    int wake, events;
    bool stopping, sleeping;    /* sleeping: without a time limit */
    SSL_CTX *context;
    struct slot *slots;
    unsigned most, free;
    struct loop loop;
};

int relay_version(void)
{
    return RELAY_VERSION;
}

static void ring(int eventfd)
{
    uint64_t one = 1;
    if (write(eventfd, &one, sizeof one) < 0)
        return;     /* full: it rings already */
}

static void enter(struct relay *relay)
{
    pthread_mutex_lock(&relay->lock);
}

static void leave(struct relay *relay)
{
    if (relay->loop.first_pending)
        ring(relay->events);
    if (relay->sleeping && (relay->loop.deadlines || relay->stopping))
        ring(relay->wake);
    pthread_mutex_unlock(&relay->lock);
}

static struct link *find(struct relay *relay, uint64_t number)
{
    unsigned at = number & SLOT_MASK;
    struct link *link = at < relay->most ? relay->slots[at].link : NULL;
    return link && link->number == number ? link : NULL;
}

/* The same, but not one whose end waits to be told. */
static struct link *find_open(struct relay *relay, uint64_t number)
{
    struct link *link = find(relay, number);
    return link && !link->pending_gone ? link : NULL;
}

static void forget(struct relay *relay, struct link *link)
{
    unsigned at = link->number & SLOT_MASK;
    relay->slots[at].link = NULL;
    relay->slots[at].next_free = relay->free;
    relay->free = at;
    free(link);
}

static void expire(struct relay *relay)
{
    uint64_t now = now_ms();
    for (unsigned at = 0; at < relay->most && relay->loop.deadlines; at++) {
        struct link *link = relay->slots[at].link;
        if (link && link->deadline && link->deadline <= now)
            link_abort(&relay->loop, link);
    }
}

static void dispatch(struct relay *relay, const struct epoll_event *event)
{
    uint64_t drained;
    if (event->data.u64 == WAKE) {
        if (read(relay->wake, &drained, sizeof drained) < 0)
            return;
        return;
    }
    struct link *link = find_open(relay, event->data.u64 >> 1);
    if (link)
        link_event(&relay->loop, link, event->data.u64 & 1, event->events);
}

static void *run(void *argument)
{
    struct relay *relay = argument;
    uint64_t looked = now_ms();
    enter(relay);
    while (!relay->stopping) {
        struct epoll_event events[EVENTS];
        bool limited = relay->loop.deadlines != 0;
        relay->sleeping = !limited;
        leave(relay);
        int count = epoll_wait(relay->loop.epoll, events, EVENTS, limited ? TICK_MS : -1);
        enter(relay);
        relay->sleeping = false;
        for (int i = 0; i < count; i++)
            dispatch(relay, &events[i]);
        if (relay->loop.deadlines && now_ms() - looked >= TICK_MS) {
            expire(relay);
            looked = now_ms();
        }
    }
    leave(relay);
    return NULL;
}

static struct relay *refuse(struct relay *relay, const char *what, char *why, size_t room)
{
    snprintf(why, room, "%s: %s", what, strerror(errno));
    if (!relay)
        return NULL;
    for (int *fd = (int[]){ relay->loop.epoll, relay->wake, relay->events, -2 }; *fd != -2; fd++)
        if (*fd >= 0)
            close(*fd);
    free(relay->slots);
    free(relay);
    return NULL;
}

/* Signals are for the caller's threads. */
static int start(struct relay *relay)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&relay->thread, NULL, run, relay);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return error ? -1 : 0;
}

struct relay *relay_open(unsigned most, char *why, size_t room)
{
    struct relay *relay = calloc(1, sizeof *relay);
    errno = ENOMEM;
    if (!relay)
        return refuse(NULL, "the relay", why, room);
    relay->loop.epoll = relay->wake = relay->events = -1;
    relay->most = most < SLOT_MASK ? most : SLOT_MASK;
    relay->slots = calloc(relay->most, sizeof *relay->slots);
    if (!relay->slots)
        return refuse(relay, "the table of links", why, room);
    for (unsigned at = 0; at < relay->most; at++)
        relay->slots[at].next_free = at + 1;
    relay->loop.epoll = epoll_create1(EPOLL_CLOEXEC);
    relay->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    relay->events = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = { .events = EPOLLIN, .data.u64 = WAKE };
    if (relay->loop.epoll < 0 || relay->wake < 0 || relay->events < 0 || epoll_ctl(relay->loop.epoll, EPOLL_CTL_ADD, relay->wake, &event) < 0)
        return refuse(relay, "epoll", why, room);
    pthread_mutex_init(&relay->lock, NULL);
    return start(relay) < 0 ? refuse(relay, "the relay's thread", why, room) : relay;
}

void relay_close(struct relay *relay)
{
    enter(relay);
    relay->stopping = true;
    leave(relay);
    ring(relay->wake);
    pthread_join(relay->thread, NULL);
    for (unsigned at = 0; at < relay->most; at++)
        if (relay->slots[at].link)
            link_abort(&relay->loop, relay->slots[at].link);
    /* Not before: those that wait to be told are a list. */
    for (unsigned at = 0; at < relay->most; at++)
        free(relay->slots[at].link);
    close(relay->loop.epoll);
    close(relay->wake);
    close(relay->events);
    SSL_CTX_free(relay->context);
    pthread_mutex_destroy(&relay->lock);
    free(relay->loop.wire.out);
    free(relay->slots);
    free(relay);
}

int relay_events(struct relay *relay)
{
    return relay->events;
}

static struct relay_counts counted(const struct link *link)
{
    const struct end *client = &link->ends[CLIENT], *upstream = &link->ends[UPSTREAM];
    uint64_t waits = client->out.size - client->out.at + upstream->out.size - upstream->out.at;
    return (struct relay_counts){ client->received, upstream->received, waits };
}

int relay_next(struct relay *relay, struct relay_event *event)
{
    enter(relay);
    struct link *link = relay->loop.first_pending;
    if (!link) {
        uint64_t rung;
        if (read(relay->events, &rung, sizeof rung) < 0)
            errno = 0;      /* silent already */
        pthread_mutex_unlock(&relay->lock);
        return 0;
    }
    *event = (struct relay_event){ link->number, link->pending_ready ? RELAY_READY : RELAY_GONE, counted(link) };
    bool more = link->pending_ready && link->pending_gone;
    link->pending_ready = false;
    if (!more) {
        relay->loop.first_pending = link->next_pending;
        if (!relay->loop.first_pending)
            relay->loop.last_pending = NULL;
        link->pending = false;
        if (event->kind == RELAY_GONE)
            forget(relay, link);
    }
    pthread_mutex_unlock(&relay->lock);
    return 1;
}

int relay_certificate(struct relay *relay, const char *chain, const char *key, char *why, size_t room)
{
    SSL_CTX *context = tls_context(chain, key, why, room);
    if (!context)
        return -1;
    enter(relay);
    SSL_CTX *before = relay->context;
    relay->context = context;
    leave(relay);
    SSL_CTX_free(before);
    return 0;
}

/* A link for a connection, or NULL when there are too many, or no memory. */
static struct link *new_link(struct relay *relay, int fd, bool tls)
{
    unsigned at = relay->free;
    struct link *link = at < relay->most && (relay->context || !tls) ? calloc(1, sizeof *link) : NULL;
    SSL *ssl = link && tls ? tls_connection(relay->context, &relay->loop.wire) : NULL;
    if (!link || (tls && !ssl)) {
        free(link);
        return NULL;
    }
    relay->free = relay->slots[at].next_free;
    relay->slots[at].link = link;
    link->number = ++relay->slots[at].uses << SLOT_BITS | at;
    link->ends[CLIENT] = (struct end){ .fd = fd, .ssl = ssl };
    link->ends[UPSTREAM] = (struct end){ .fd = -1 };
    return link;
}

uint64_t relay_accept(struct relay *relay, int fd, bool tls, unsigned milliseconds)
{
    enter(relay);
    struct link *link = new_link(relay, fd, tls);
    uint64_t number = link ? link->number : 0;
    if (!link) {
        close(fd);
    } else if (tls) {
        link->handshaking = true;
        link_deadline(&relay->loop, link, now_ms() + milliseconds);
        link_settle(&relay->loop, link);
    } else {
        link_welcome(&relay->loop, link);
    }
    leave(relay);
    return number;
}

int relay_attach(struct relay *relay, uint64_t number, int fd)
{
    enter(relay);
    struct link *link = find_open(relay, number);
    bool may = link && !link->handshaking && !link->ready;
    if (may)
        link_attach(&relay->loop, link, fd);
    else
        close(fd);
    leave(relay);
    return may ? 0 : -1;
}

int relay_hold(struct relay *relay, uint64_t number)
{
    enter(relay);
    struct link *link = find_open(relay, number);
    if (link) {
        link->held = true;
        link_settle(&relay->loop, link);
    }
    leave(relay);
    return link ? 0 : -1;
}

int relay_switch(struct relay *relay, uint64_t number, int fd, const struct relay_early *early)
{
    enter(relay);
    struct link *link = find_open(relay, number);
    bool may = link && link->ready && !link->relaying;
    if (may)
        link_switch(&relay->loop, link, fd, early);
    else
        close(fd);
    leave(relay);
    return may ? 0 : -1;
}

int relay_end(struct relay *relay, uint64_t number, const uint8_t *frame, size_t size, unsigned milliseconds)
{
    enter(relay);
    struct link *link = find_open(relay, number);
    if (link)
        link_end(&relay->loop, link, frame, size, milliseconds);
    leave(relay);
    return link ? 0 : -1;
}

int relay_abort(struct relay *relay, uint64_t number)
{
    enter(relay);
    struct link *link = find_open(relay, number);
    if (link)
        link_abort(&relay->loop, link);
    leave(relay);
    return link ? 0 : -1;
}

int relay_count(struct relay *relay, uint64_t number, struct relay_counts *counts)
{
    enter(relay);
    struct link *link = find(relay, number);
    if (link)
        *counts = counted(link);
    leave(relay);
    return link ? 0 : -1;
}

int relay_descriptor(struct relay *relay, uint64_t number, int side)
{
    enter(relay);
    struct link *link = find_open(relay, number);
    int fd = link ? link->ends[side == UPSTREAM].fd : -1;
    leave(relay);
    return fd;
}
