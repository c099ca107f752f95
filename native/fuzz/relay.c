/*
 * The relay's frames and links. An input for `relay` is a script: each byte is an action of one of the peers, of the portal, or of time, and the bytes behind
 * it what is sent. Links are driven without the thread, over real socket pairs.
 */
#include "relay.h"

#include "../relay/link.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* However a stream is cut, it has the same boundaries. */
void run_frames(const uint8_t *bytes, size_t size)
{
    struct frames whole = { 0 }, bytewise = { 0 }, stopping = { 0 };
    if (frames_feed(&whole, bytes, size, false) != size)
        abort();
    for (size_t at = 0; at < size; at++) {
        uint8_t *one = malloc(1);
        *one = bytes[at];
        frames_feed(&bytewise, one, 1, false);
        free(one);
    }
    for (size_t at = 0; at < size;) {
        size_t taken = frames_feed(&stopping, bytes + at, size - at, true);
        if (!taken || (at + taken < size && !frames_at_boundary(&stopping)))
            abort();
        at += taken;
    }
    if (memcmp(&whole, &bytewise, sizeof whole) && (whole.left != bytewise.left || whole.header_size != bytewise.header_size))
        abort();
    if (whole.saw_close != bytewise.saw_close || whole.left != stopping.left || whole.saw_close != stopping.saw_close)
        abort();
}

static struct loop loop;

/* Both ends of a connection: what is handed to the link, and what the peer has. */
static int connection(int *theirs)
{
    int ends[2], small = 4096;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0)
        abort();
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    *theirs = ends[1];
    return ends[0];
}

static void turn(struct link *link)
{
    struct epoll_event events[4];
    int count = epoll_wait(loop.epoll, events, 4, 0);
    for (int i = 0; i < count; i++)
        link_event(&loop, link, events[i].data.u64 & 1, events[i].events);
}

static SSL_CTX *context(void)
{
    static SSL_CTX *made;
    if (!made) {
        char why[256];
        EVP_PKEY *key = EVP_EC_gen("P-256");
        X509 *certificate = X509_new();
        X509_set_pubkey(certificate, key);
        X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
        X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
        X509_sign(certificate, key, EVP_sha256());
        made = tls_context(NULL, NULL, why, sizeof why);
        if (!made || SSL_CTX_use_certificate(made, certificate) != 1 || SSL_CTX_use_PrivateKey(made, key) != 1)
            abort();
        X509_free(certificate);
        EVP_PKEY_free(key);
    }
    return made;
}

enum { FROM_CLIENT, FROM_OTHER, READ_CLIENT, READ_OTHER, END_CLIENT, END_OTHER, DROP_CLIENT, DROP_OTHER, ATTACH, HOLD, SWITCH, END, ABORT, ACTIONS };

struct play {
    struct link *link;
    int client, other;      /* the peers' descriptors */
    uint8_t buffer[70000];
};

static void send_some(int fd, struct play *play, uint8_t value, size_t size)
{
    memset(play->buffer, value, size);
    if (fd >= 0)
        send(fd, play->buffer, size, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void drop(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* One action; the bytes used. */
static size_t act(struct play *play, const uint8_t *bytes, size_t size)
{
    struct link *link = play->link;
    uint8_t value = size > 1 ? bytes[1] : 0, extent = size > 2 ? bytes[2] : 0;
    size_t amount = extent < 200 ? extent : (size_t)(extent - 199) * 1200, literal = size > 3 && extent <= size - 3 ? extent : 0;
    struct relay_early early = { bytes, bytes, bytes, size > 9 ? 9 : size, value < size ? value : 0, extent < size ? extent : 0 };
    bool open = !link->pending_gone, relays = open && link->ready && !link->relaying, attaches = open && !link->handshaking && !link->ready;
    switch (bytes[0] % ACTIONS) {
    case FROM_CLIENT:
        if (link->ends[CLIENT].ssl && play->client >= 0 && literal)
            send(play->client, bytes + 3, literal, MSG_NOSIGNAL | MSG_DONTWAIT);
        else
            send_some(play->client, play, value, amount);
        break;
    case FROM_OTHER: send_some(play->other, play, value, amount); break;
    case READ_CLIENT: if (play->client >= 0) recv(play->client, play->buffer, amount, MSG_DONTWAIT); break;
    case READ_OTHER: if (play->other >= 0) recv(play->other, play->buffer, amount, MSG_DONTWAIT); break;
    case END_CLIENT: shutdown(play->client, SHUT_WR); break;
    case END_OTHER: shutdown(play->other, SHUT_WR); break;
    case DROP_CLIENT: drop(&play->client); break;
    case DROP_OTHER: drop(&play->other); break;
    case ATTACH: if (attaches) link_attach(&loop, link, connection(&play->other)); break;
    case HOLD: if (open) { link->held = true; link_settle(&loop, link); } break;
    case SWITCH: if (relays) { int before = play->other; link_switch(&loop, link, connection(&play->other), &early); drop(&before); } break;
    case END: if (open) link_end(&loop, link, (const uint8_t *)"\x88\x02\x03\xe8", 4, value); break;
    case ABORT: if (open && value == 0xff) link_abort(&loop, link); break;
    }
    return 3 + literal < size ? 3 + literal : size;
}

void run_relay(const uint8_t *bytes, size_t size)
{
    static struct play play;
    if (!size)
        return;
    if (!loop.epoll)
        loop.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct link *link = calloc(1, sizeof *link);
    play.link = link;
    play.other = -1;
    link->number = 1;
    link->ends[UPSTREAM].fd = -1;
    link->ends[CLIENT].fd = connection(&play.client);
    if (bytes[0] & 1) {
        link->ends[CLIENT].ssl = tls_connection(context(), &loop.wire);
        link->handshaking = true;
        link_settle(&loop, link);
    } else {
        link_welcome(&loop, link);
    }
    for (size_t at = 1; at < size;) {
        at += act(&play, bytes + at, size - at);
        if (!link->pending_gone)
            turn(link);
        for (int side = 0; side < 2; side++)
            if (link->ends[side].out.size - link->ends[side].out.at > 256 * 1024)
                abort();
        if (loop.wire.in_size || loop.wire.out_size)
            abort();    /* somebody else's bytes would be next */
    }
    drop(&play.client);
    drop(&play.other);
    /* Both peers are gone: nothing may keep the link for longer than its deadline. */
    for (int i = 0; i < 20 && !link->pending_gone; i++)
        turn(link);
    if (!link->pending_gone && link->ready && !link->deadline && !link->held)
        abort();
    if (!link->pending_gone)
        link_abort(&loop, link);
    if (!link->pending_gone || loop.deadlines)
        abort();
    loop.first_pending = loop.last_pending = NULL;
    free(link);
}
