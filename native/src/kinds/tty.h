/* One pseudo terminal: its master, its slaves, and what lies unread in it. */
#ifndef TCLONE_TTY_H
#define TCLONE_TTY_H

#include <asm/termbits.h>

#include "../plan.h"

#define SLAVE_MAJOR 136

struct terminal_size { unsigned short rows, columns, width, height; };

/* Bytes on their way through a pty. */
struct tty_bytes {
    char *data;
    size_t size;
};

enum stopped { NOT_STOPPED, STOPPED_BY_CHARACTER, STOPPED_BY_CALL };      /* ^S; tcflow(TCOOFF) */

struct pty {
    const struct own_system *system;        /* the devpts mounted inside in which it is; NULL = the workspace's own */
    int index;
    const struct description *first, *master, *slave;   /* slave: one of them */
    struct stat node;           /* of /dev/pts/N */
    struct termios2 termios;
    struct terminal_size size;
    int locked, packet_mode, master_exclusive, slave_exclusive;
    bool slave_closed;          /* the master sees a hang-up: slaves were open once, none is now */
    const struct process *leader;   /* whose controlling terminal it is */
    int foreground;             /* process group; 0 = none */
    struct tty_bytes output;    /* written to a slave, not read from the master yet */
    struct tty_bytes input;     /* written to the master, not read from a slave yet */
    enum stopped stopped;       /* its output */
    int queue_aux;              /* slot of a slave that is open while the queues are filled */
    uint64_t master_cell;       /* holds the master's temporary number while the batch runs */
};

/* Take unread bytes out of the frozen source's ptys and put them back at once, keeping a copy. */
int tty_queues_capture(struct world *world, struct pty **ptys, int count, struct error *err);
/* Put them into the pty of a branch, whose master is at its slot; its settings are not made yet. */
void tty_queue_emit(struct batch *batch, const struct pty *pty, const char *what);
/* In a branch, in descriptors not taken yet: open the pty's slave, or with `multiplexer` one more pty of its devpts. */
void tty_emit_open(struct batch *batch, const struct pty *pty, bool multiplexer, uint64_t flags, const char *what);
/* Whose controlling terminal each is: `leader` and `foreground`. */
int tty_sessions_find(const struct world *world, struct pty **ptys, int count, struct error *err);
/* In a branch, when its leader has become one. */
void tty_session_emit(struct plan *plan, const struct pty *pty, const char *what);
/* The settings with which the stop character stops output. */
struct termios2 tty_stopping_termios(const struct pty *pty);

#endif
