/* The conversation with the engine: JSON packets on a SOCK_SEQPACKET socket (docs/explanation/architecture.md). */
#ifndef TCLONE_CONTROL_H
#define TCLONE_CONTROL_H

#include <stdint.h>

#include "blockers.h"
#include "branch.h"

struct control {
    int socket;
    uint64_t started;           /* monotonic ns */
};

/* Timestamps, in ms since the start, of phases; sent as they happen and again in the final packet. */
struct phase_times { double preflight, frozen, captured, compiled, mapped, copied, resumed, rebuilt, usable; };

double control_ms(const struct control *control);
void control_phase(const struct control *control, const char *name, double *ms);
void control_branch(const struct control *control, const struct branch *branch);
void control_blocker(const struct control *control, const struct blocker *blocker);
void control_error(const struct control *control, const struct error *err);
void control_done(const struct control *control, const struct phase_times *times, int processes, int threads, int64_t bytes);
/* Facts, and the descriptor that goes with them if it is not negative. */
void control_learnt(const struct control *control, const char *facts, int fd);
/* Receive until every live branch has its root. */
int control_await_roots(const struct control *control, struct branch *branches, int count, struct error *err);
/* Read what the engine has sent and nobody wants any more: closing a socket with unread packets would cost the engine our last answer. */
void control_drain(const struct control *control);
/* Text as a JSON string with quotes; caller frees. */
char *json_string(const char *text);

#endif
