/* One pseudo terminal: its master, its slaves, and what lies unread in it. */
#ifndef TCLONE_TTY_H
#define TCLONE_TTY_H

#include <asm/termbits.h>

#include "../plan.h"

struct terminal_size { unsigned short rows, columns, width, height; };

/* Bytes on their way through a pty. */
struct tty_bytes {
    char *data;
    size_t size;
};

struct pty {
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
    uint64_t master_cell;       /* holds the master's temporary number while the batch runs */
};

/* Take unread bytes out of the frozen source's pty and put them back at once, keeping a copy. */
int tty_queue_capture(struct pty *pty, struct error *err);
/* Put them into the pty of a branch; master_cell is open, its settings are not made yet. */
void tty_queue_emit(struct batch *batch, const struct pty *pty, uint64_t slave_path, const char *what);

#endif
