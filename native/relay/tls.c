#include "tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static BIO_METHOD *method;

static int wire_write(BIO *bio, const char *bytes, int size)
{
    struct wire *wire = BIO_get_data(bio);
    if (size <= 0)
        return 0;
    if (wire->out_room - wire->out_size < (size_t)size) {
        size_t room = (wire->out_size + (size_t)size) * 2;
        uint8_t *grown = realloc(wire->out, room);
        if (!grown)
            return -1;
        wire->out = grown;
        wire->out_room = room;
    }
    memcpy(wire->out + wire->out_size, bytes, (size_t)size);
    wire->out_size += (size_t)size;
    return size;
}

static int wire_read(BIO *bio, char *bytes, int size)
{
    struct wire *wire = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (size <= 0)
        return 0;
    if (!wire->in_size) {
        BIO_set_retry_read(bio);
        return -1;
    }
    size_t step = wire->in_size < (size_t)size ? wire->in_size : (size_t)size;
    memcpy(bytes, wire->in, step);
    wire->in += step;
    wire->in_size -= step;
    return (int)step;
}

static long wire_control(BIO *bio, int command, long number, void *pointer)
{
    (void)bio, (void)number, (void)pointer;
    return command == BIO_CTRL_FLUSH;
}

static int wire_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

static void make_method(void)
{
    method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "tclone wire");
    if (method && !(BIO_meth_set_write(method, wire_write) && BIO_meth_set_read(method, wire_read) && BIO_meth_set_ctrl(method, wire_control)
                    && BIO_meth_set_create(method, wire_create))) {
        BIO_meth_free(method);
        method = NULL;
    }
}

/* HTTP/1.1 is all that is spoken; a client that does not offer it gets no choice made, as with Python's ssl. */
static int choose_protocol(SSL *ssl, const unsigned char **chosen, unsigned char *size, const unsigned char *offered, unsigned offered_size, void *data)
{
    static const unsigned char ours[] = "\x08http/1.1";
    (void)ssl, (void)data;
    unsigned char *found = NULL;
    if (SSL_select_next_proto(&found, size, ours, sizeof ours - 1, offered, offered_size) != OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_NOACK;
    *chosen = found;
    return SSL_TLSEXT_ERR_OK;
}

/* A key with a passphrase is refused: OpenSSL would ask for it on the terminal. */
static int no_passphrase(char *buffer, int size, int writing, void *data)
{
    (void)buffer, (void)size, (void)writing, (void)data;
    return -1;
}

static SSL_CTX *failed(SSL_CTX *context, const char *what, char *why, size_t room)
{
    char text[200] = "no memory";
    unsigned long error = ERR_peek_error();
    if (error)
        ERR_error_string_n(error, text, sizeof text);
    snprintf(why, room, "%s: %s", what, text);
    ERR_clear_error();
    SSL_CTX_free(context);
    return NULL;
}

SSL_CTX *tls_context(const char *chain, const char *key, char *why, size_t room)
{
    ERR_clear_error();
    pthread_once(&once, make_method);
    SSL_CTX *context = method ? SSL_CTX_new(TLS_server_method()) : NULL;
    if (!context)
        return failed(NULL, "TLS cannot be had", why, room);
    SSL_CTX_set_default_passwd_cb(context, no_passphrase);
    SSL_CTX_set_options(context, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_PRIORITIZE_CHACHA
                                     | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_alpn_select_cb(context, choose_protocol, NULL);
    /*
     * What authenticates what it encrypts, with keys of the connection's own. TLS 1.3 has nothing else; of its ciphers the one that everybody has
     * to have, browsers name first and costs least. A client without AES in its processor says so by naming ChaCha20 first.
     */
    if (SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION) != 1 || SSL_CTX_set_cipher_list(context, "ECDHE+AESGCM:ECDHE+CHACHA20") != 1
        || SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") != 1
        || SSL_CTX_set_session_id_context(context, (const unsigned char *)"tclone", 6) != 1)
        return failed(context, "TLS cannot be had", why, room);
    if (!chain)
        return context;
    if (SSL_CTX_use_certificate_chain_file(context, chain) != 1)
        return failed(context, chain, why, room);
    if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(context) != 1)
        return failed(context, key, why, room);
    return context;
}

SSL *tls_connection(SSL_CTX *context, struct wire *wire)
{
    SSL *ssl = SSL_new(context);
    BIO *bio = ssl ? BIO_new(method) : NULL;
    if (!bio) {
        SSL_free(ssl);
        return NULL;
    }
    BIO_set_data(bio, wire);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_accept_state(ssl);
    return ssl;
}

enum tls_state tls_accept(SSL *ssl)
{
    ERR_clear_error();
    int result = SSL_do_handshake(ssl);
    if (result == 1)
        return TLS_DONE;
    return SSL_get_error(ssl, result) == SSL_ERROR_WANT_READ ? TLS_WAITS : TLS_LOST;
}

enum tls_state tls_open(SSL *ssl, const struct wire *wire, uint8_t *bytes, size_t room, size_t *size)
{
    *size = 0;
    ERR_clear_error();
    while (*size < room) {
        size_t count = 0;
        int result = SSL_read_ex(ssl, bytes + *size, room - *size, &count);
        if (result == 1) {
            *size += count;
            if (!wire->in_size && !SSL_pending(ssl))
                return TLS_WAITS;
            continue;
        }
        int error = SSL_get_error(ssl, result);
        return error == SSL_ERROR_WANT_READ ? TLS_WAITS : error == SSL_ERROR_ZERO_RETURN ? TLS_ENDED : TLS_LOST;
    }
    /* Only a caller with too small a buffer comes here; what is left on the wire would be lost. */
    return TLS_LOST;
}

int tls_seal(SSL *ssl, const uint8_t *bytes, size_t size)
{
    size_t written = 0;
    ERR_clear_error();
    return SSL_write_ex(ssl, bytes, size, &written) == 1 && written == size ? 0 : -1;
}

void tls_end(SSL *ssl)
{
    ERR_clear_error();
    SSL_shutdown(ssl);
}
