/* TLS for the relay by OpenSSL, over memory: ciphertext comes from and goes to a `struct wire`, so that a frame's records are one send(). */
#ifndef TCLONE_RELAY_TLS_H
#define TCLONE_RELAY_TLS_H

#include <openssl/ssl.h>
#include <stddef.h>
#include <stdint.h>

/* What is read from a connection and what is to be sent on it, for the time of one call: all connections share one. */
struct wire {
    const uint8_t *in;
    size_t in_size;
    uint8_t *out;
    size_t out_size, out_room;
};

/* A server's context with the chain and key of two PEM files, as portal/stream/certificate.py makes it; NULL with the reason in `why`.
 * Without files the caller adds a certificate. */
SSL_CTX *tls_context(const char *chain, const char *key, char *why, size_t room);
/* A connection that will be accepted; NULL when there is no memory. `wire` outlives it. */
SSL *tls_connection(SSL_CTX *context, struct wire *wire);

enum tls_state { TLS_LOST = -1, TLS_WAITS = 0, TLS_DONE = 1, TLS_ENDED = 2 };
/* Go on with the handshake: TLS_DONE, TLS_WAITS for more bytes, or TLS_LOST. */
enum tls_state tls_accept(SSL *ssl);
/* Take what is on the wire apart into `bytes`, at most `room`; `*size` is what was there. TLS_WAITS: all was read. TLS_ENDED: and the peer ended. */
enum tls_state tls_open(SSL *ssl, const struct wire *wire, uint8_t *bytes, size_t room, size_t *size);
/* Put `bytes` on the wire. 0, or -1 when the connection is of no more use. */
int tls_seal(SSL *ssl, const uint8_t *bytes, size_t size);
/* Put our goodbye on the wire. */
void tls_end(SSL *ssl);

#endif
