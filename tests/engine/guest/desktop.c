/*
 * Plays the desktop's stream server on 127.0.0.1:8080: health, one table of tokens, a screenshot of two pixels. Every table it is given is
 * added to /tmp/tables, a line each. One request for a connection. With a file /tmp/restarted it has forgotten its table, which it says
 * by removing the file; while there is a file /tmp/deaf nobody listens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* 2 x 2 pixels, 8 bit grey: black, white; white, black. */
static const unsigned char picture[] = {
    0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n', 0, 0, 0, 13, 'I', 'H', 'D', 'R', 0, 0, 0, 2, 0, 0, 0, 2, 8, 0, 0, 0, 0, 0x57, 0xdd, 0x52, 0xf8,
    0, 0, 0, 17, 'I', 'D', 'A', 'T', 0x78, 0x01, 1, 6, 0, 0xf9, 0xff, 0, 0, 0xff, 0, 0xff, 0, 0x06, 0x00, 0x01, 0xff, 0, 0, 0, 0,
    0, 0, 0, 0, 'I', 'E', 'N', 'D', 0xae, 0x42, 0x60, 0x82,
};

/* The table in force. */
static char table[8192];

static void answer(int client, const char *status, const void *body, size_t size)
{
    char head[128];
    int length = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status, size);
    if (write(client, head, (size_t)length) < 0 || write(client, body, size) < 0)
        return;
}

static void note_table(const char *body)
{
    int fd = open("/tmp/tables", O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(fd, body, strlen(body)) < 0 || write(fd, "\n", 1) < 0)
        abort();
    close(fd);
}

/* Whether the request's bearer is a token of the table: it stands there in quotes. */
static int known(const char *request)
{
    char quoted[512];
    const char *bearer = strcasestr(request, "authorization: bearer ");
    if (!bearer)
        return 0;
    bearer += strlen("authorization: bearer ");
    snprintf(quoted, sizeof quoted, "\"%.*s\"", (int)strcspn(bearer, "\r\n"), bearer);
    return strstr(table, quoted) != NULL;
}

static void serve(int client)
{
    char request[8192] = "";
    size_t used = 0, wanted = 0;
    char *body = NULL;
    while (!body || strlen(body) < wanted) {
        ssize_t got = read(client, request + used, sizeof request - 1 - used);
        if (got <= 0)
            return;
        request[used += (size_t)got] = 0;
        body = strstr(request, "\r\n\r\n");
        const char *length = strcasestr(request, "content-length:");
        if (body) {
            body += 4;
            wanted = length && length < body ? (size_t)atoi(length + 15) : 0;
        }
    }
    if (unlink("/tmp/restarted") == 0)
        table[0] = 0;
    if (strncmp(request, "POST /api/tokens", 16) == 0) {
        note_table(body);
        snprintf(table, sizeof table, "%s", body);
    }
    if (strncmp(request, "GET /api/screenshot", 19) == 0)
        answer(client, "200 OK", picture, sizeof picture);
    else if (strncmp(request, "GET /api/websockets", 19) == 0 && !known(request))
        answer(client, "401 Unauthorized", "{}", 2);
    else
        answer(client, "200 OK", "{}", 2);
}

static int listening(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(8080), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 16) < 0)
        exit(1);
    return listener;
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    int listener = listening();
    for (;;) {
        struct pollfd waiting = { .fd = listener, .events = POLLIN };
        int ready = poll(&waiting, 1, 100);
        if (access("/tmp/deaf", F_OK) == 0) {
            close(listener);
            while (access("/tmp/deaf", F_OK) == 0)
                usleep(50000);
            listener = listening();
            continue;
        }
        int client = ready > 0 ? accept(listener, NULL, NULL) : -1;
        if (client < 0)
            continue;
        serve(client);
        close(client);
    }
}
