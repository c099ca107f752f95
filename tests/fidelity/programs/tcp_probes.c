/*
 * A connection whose receiver takes nothing more. The sender asks for the window from time to time; the answer may come just while the fork reads
 * what waits to be sent, and must not make the kernel believe that it was sent: it would go out minutes later.
 */
#include "tcp_filled.h"

#define PORT 18204
#define SETTLE_MS 10000

int main(void)
{
    struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons(PORT), .sin6_addr = IN6ADDR_LOOPBACK_INIT };
    int listener = MUST(socket(AF_INET6, SOCK_STREAM, 0)), on = 1, size = 1 << 20;
    MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    MUST(setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
    MUST(bind(listener, (void *)&address, sizeof address));
    MUST(listen(listener, 8));
    int client = MUST(socket(AF_INET6, SOCK_STREAM, 0));
    MUST(connect(client, (void *)&address, sizeof address));
    int server = MUST(accept(listener, NULL, NULL));
    uint64_t total = 0;
    struct tcp_info before = { 0 };
    /* All that the window takes has been taken, and the rest waits. */
    for (int waited = 0; !(before.tcpi_notsent_bytes > 1 << 20 && before.tcpi_unacked == 0 && before.tcpi_backoff); waited += FIDELITY_POLL_MS) {
        CHECK(waited < SETTLE_MS, "never full; %s", tcp_described(client));
        total = tcp_fill(client, total);
        fidelity_sleep_ms(FIDELITY_POLL_MS);
        before = tcp_info_of(client);
    }

    fidelity_ready();
    fidelity_await_go();

    struct tcp_info after = tcp_info_of(client);
    if (!fidelity_in_branch())
        CHECK(after.tcpi_unacked == 0 && after.tcpi_notsent_bytes == before.tcpi_notsent_bytes, "%u bytes waited to be sent before the fork; %s",
              before.tcpi_notsent_bytes, tcp_described(client));
    tcp_drain(server, client, total, "full");
    fidelity_pass();
}
