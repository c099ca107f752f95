/* What tclone-init does in a new branch on behalf of the programs in it: `tclone-init --after-fork`. */
#ifndef TCLONE_AFTER_FORK_H
#define TCLONE_AFTER_FORK_H

/* init.c: the console's log, opened for appending without following links; -1 and errno. */
int open_console_log(void);

/* Send the signals that were asked for, then run the hooks. Returns the exit status: 0, or 1 when a hook failed. */
int after_fork(void);

#endif
